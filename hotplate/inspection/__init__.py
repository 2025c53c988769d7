"""An image looked into without booting it, and without root.

:mod:`~hotplate.inspection.disk` reads the bytes that a guest would see,
:mod:`~hotplate.inspection.ext4` the files in them, :mod:`~hotplate.inspection.contents` what they
say, and :mod:`~hotplate.inspection.findings` what will not work.  An image may come from anybody:
each size that it names is bounded, links lead nowhere but into the image itself, and all text goes
through :func:`hotplate.text.clean` before it is shown.
"""
