"""A real Heat and the rest of a cloud around it, in this process.

Knows no QEMU: whoever makes a :class:`~hotplate.cloud.cloud.Cloud` gives it a
:class:`~hotplate.cloud.nova.compute.Compute` that boots servers.
"""
