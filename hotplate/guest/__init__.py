"""Connections to a running guest: the shell channel, ssh; testinfra on top.

All are a :class:`~hotplate.guest.base.Guest` on a connected socket, which the caller provides.
"""
