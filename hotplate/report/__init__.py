"""The output of a run: terminal, HTML, JUnit, TAP, JSON, GitHub workflows, artifacts.

Reads a verdict and the events; decides nothing.
"""
