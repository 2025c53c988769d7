"""Containers as machines: an image's root file system, booted by systemd-nspawn.

A container shares the host's kernel, so it starts within a second where a virtual machine under
emulation takes a minute.  :class:`~hotplate.container.machine.ContainerMachine` is the kind of
machine; :mod:`hotplate.container.root` finds the root file system in an image.
"""
