"""Private segments between machines: a switch, DHCP, names, and ports identified by their link.

Knows no Heat and no QEMU.  The parts that other rooms use are
:class:`~hotplate.network.segment.Segment`, :class:`~hotplate.network.segment.Port` and
:func:`~hotplate.network.segment.refusal`.
"""
