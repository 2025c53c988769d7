"""A real Heat and the other services of a cloud, in this process.

It knows no QEMU: the code that creates a :class:`~hotplate.cloud.cloud.Cloud` passes it a
:class:`~hotplate.cloud.nova.compute.Compute` that boots servers.
"""
