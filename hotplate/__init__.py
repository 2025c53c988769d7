"""hotplate: images that OpenStack Heat can configure, and the proof that they can be.

The package is the harness.  What goes into an image lies beside it, in ``elements/`` and
``hooks/``, and shares no code with it.
"""

__version__ = "0.1.0"
