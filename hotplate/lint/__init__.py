"""Findings in a collection of diskimage-builder elements, read from its files.

:mod:`~hotplate.lint.elements` checks for mistakes that diskimage-builder ignores silently;
shellcheck is run as a process. Only :func:`~hotplate.lint.lint.hook_findings` runs code of an
element, and only on request.
"""
