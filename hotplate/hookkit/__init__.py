"""What the author of a hook uses on this host, without a guest and without Heat.

A hook is run by the runner that images have, :mod:`hotplate.hookkit.guest_runner`, in a process of
its own; this package reads what that reports, and what else has changed on the host.
"""
