"""Inspection of an image without booting it, and but for xfs and btrfs without root.

:mod:`~hotplate.inspection.disk` reads the bytes of the disk as a guest would see them,
:mod:`~hotplate.inspection.ext4` the files, :mod:`~hotplate.inspection.system` puts several file
systems together, :mod:`~hotplate.inspection.contents` has their meaning, and
:mod:`~hotplate.inspection.findings` reports faults. An image may come from a stranger: each size
that it names is bounded, links are resolved inside the image only, and all text goes through
:func:`hotplate.text.clean` before it is shown.
"""
