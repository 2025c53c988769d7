"""What is wrong with a collection of diskimage-builder elements, read from its files.

:mod:`~hotplate.lint.elements` looks for what diskimage-builder passes over in silence; dib-lint and
shellcheck are run as processes, and what they are wrong about is left out.  Only
:mod:`~hotplate.lint.hooks` runs anything of an element, and only when it is asked to.
"""
