"""Servers as Heat's Nova plug-in and a guest's metadata show them.

What runs them is a :class:`~hotplate.cloud.nova.compute.Compute`, given from outside.
"""
