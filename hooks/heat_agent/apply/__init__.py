"""os-apply-config: render templates with the metadata to files.

``tree.install`` does it for a document in this process; ``program`` is the command.
"""
