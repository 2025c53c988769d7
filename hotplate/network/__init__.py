"""Private segments between machines: a switch, DHCP and names, and each port known by itself.

Knows no Heat and no QEMU.  The parts that other rooms use are
:class:`~hotplate.network.segment.Segment`, :class:`~hotplate.network.segment.Port` and
:func:`~hotplate.network.segment.refusal`.
"""
