"""Findings in a collection of diskimage-builder elements, read from its files.

:mod:`~hotplate.lint.elements` checks for mistakes that diskimage-builder passes over in silence;
shellcheck is run as a process.  Only :mod:`~hotplate.lint.hooks` runs anything of an element, and
only when it is asked to.
"""
