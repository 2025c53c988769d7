"""The cases of a test run: which there are, and how each one is built, run and reported.

A case is one image under one template, firmware and data source. The cases run one by one, side by
side, in a cloud or on a cluster.
"""
