"""The output of a run for people and machines: terminal, HTML, JUnit, JSON, artifacts.

Reads a verdict and the events; decides nothing.
"""
