"""Nova: servers as Heat's plug-in and the guest's metadata service see them.

They are run by a :class:`~hotplate.cloud.nova.compute.Compute` that the caller passes in.
"""
