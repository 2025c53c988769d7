"""The agent of a server: it collects metadata, applies templates and runs phases.

Standard library only, Python 3.9 and later; one package for each of the three programs.
"""
