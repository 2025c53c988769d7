"""Ways into a running guest: the shell channel, ssh; testinfra on top.

All are a :class:`~hotplate.guest.base.Guest`, made on a connected socket; this room does not know
where that comes from.
"""
