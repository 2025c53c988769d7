"""Images to boot: built, inspected, and overlaid so that they are never written.

Nothing is imported here: diskimage-builder loads :mod:`hotplate.image.offset_partitioning` from
this package and needs nothing else of it.
"""
