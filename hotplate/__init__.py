"""hotplate: images that OpenStack Heat can configure, and tests that prove it.

The package is the harness. The contents of images are beside it, in ``elements/`` and ``hooks/``,
and share no code with it.
"""

__version__ = "0.1.0"
