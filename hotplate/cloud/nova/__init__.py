"""Nova: servers as Heat's Nova plug-in and the guest's metadata show them.

They are run by a :class:`~hotplate.cloud.nova.compute.Compute` that the caller passes in.
"""
