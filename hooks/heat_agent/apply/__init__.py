"""os-apply-config: templates in, files out, by the metadata.

``tree.install`` does it for a document in this process; ``program`` is the command.
"""
