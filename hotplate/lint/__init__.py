"""What is wrong with a collection of diskimage-builder elements, read from its files.

:mod:`~hotplate.lint.elements` looks for what diskimage-builder passes over in silence.
"""
