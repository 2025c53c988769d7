"""Tools for the author of a hook on this host, without a guest and without Heat.

A hook is run by the runner of images, :mod:`hotplate.hookkit.guest_runner`, in a process of its
own; this package reads the report, and finds other changes on the host.
"""
