"""Checks of the frames that a port sends: no spoofed sender, no unchecked protocol.

As in Neutron's port security: the port's own MAC address, and its own addresses as the sender in
IPv4 and in ARP; no answers of a DHCP server. Other protocols, IPv6 and VLANs among them, are not
carried. A router's port may also send packets that come from outside the segment
(:class:`OutsideNetwork`).

Source of the formats: IEEE 802.3, RFC 826 (ARP), RFC 791 (IPv4), RFC 2131 (DHCP).
"""

from __future__ import annotations

import struct
from collections.abc import Container
from ipaddress import IPv4Address, IPv4Network

#: Bytes of a frame with a packet of 1500 bytes, without a checksum.
MAX_FRAME = 1514
IPV4 = b"\x08\x00"
ARP = b"\x08\x06"
# Hardware type Ethernet, protocol type IPv4, and the lengths of their addresses.
_ARP_FOR_IPV4 = b"\x00\x01\x08\x00\x06\x04"
_NOBODY = bytes(4)
_UDP = 17
# Port 67 as the source; and 68 to 67 as source and destination.
_DHCP_SERVER = b"\x00\x43"
_DHCP_REQUEST = b"\x00\x44\x00\x43"


class OutsideNetwork(Container[bytes]):
    """The IPv4 addresses outside of a network, from which a router may forward packets.

    >>> IPv4Address("10.0.1.5").packed in OutsideNetwork(IPv4Network("10.0.0.0/24"))
    True
    >>> IPv4Address("10.0.0.5").packed in OutsideNetwork(IPv4Network("10.0.0.0/24"))
    False
    """

    def __init__(self, network: IPv4Network) -> None:
        self._first = network.network_address.packed
        self._last = network.broadcast_address.packed

    def __contains__(self, address: object) -> bool:
        # Big-endian bytes compare as their numbers do.
        return isinstance(address, bytes) and not self._first <= address <= self._last


def datagram(
    payload: bytes,
    *,
    macs: tuple[bytes, bytes],
    addresses: tuple[IPv4Address, IPv4Address],
    ports: tuple[int, int],
) -> bytes:
    """Return a frame with a UDP datagram; the pairs are sender and receiver."""
    length = 8 + len(payload)
    ends = addresses[0].packed + addresses[1].packed
    # Leave out the UDP checksum, which IPv4 allows (RFC 768).
    udp = struct.pack("!4H", *ports, length, 0) + payload
    # Version 4, a header of five words, no fragment, 64 hops.
    fields = (0x45, 0, 20 + length, 0, 0, 64, _UDP)
    # The ones' complement sum of the header, with a checksum of zero; the second fold adds the
    # carry of the first (RFC 1071).
    total = sum(struct.unpack("!10H", struct.pack("!BBHHHBBH", *fields, 0) + ends))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    header = struct.pack("!BBHHHBBH", *fields, checksum) + ends
    return macs[1] + macs[0] + IPV4 + header + udp


def arp_request(mac: bytes, sender: bytes, target: bytes) -> bytes:
    """Return a broadcast frame that asks for the owner of an address (RFC 826).

    :param mac: MAC address of the asker, whose IPv4 address is ``sender``.
    """
    return b"\xff" * 6 + mac + ARP + _ARP_FOR_IPV4 + b"\0\1" + mac + sender + bytes(6) + target


def arp_answer(frame: bytes) -> bytes:
    """Return the sender's address of a frame that answers an ARP request, b"" for other frames."""
    is_answer = frame[12:14] == ARP and frame[14:22] == _ARP_FOR_IPV4 + b"\0\2"
    return frame[28:32] if is_answer else b""


def refusal(
    frame: bytes, mac: bytes, addresses: frozenset[bytes], *, routed: Container[bytes] = ()
) -> str:
    """Return the reason why a port may not send a frame, one word; "" when it may.

    :param frame: the frame, starting at the destination's MAC address.
    :param mac: the port's MAC address, six bytes.
    :param addresses: the port's IPv4 addresses, four bytes each.
    :param routed: the addresses from which a router's port may forward packets.
    """
    if not 14 <= len(frame) <= MAX_FRAME:
        return "size"
    if frame[6:12] != mac:
        return "mac"
    kind = frame[12:14]
    if kind == IPV4:
        return _refusal_of_ipv4(frame, addresses, routed)
    if kind == ARP:
        return _refusal_of_arp(frame, mac, addresses)
    return "protocol"


def _refusal_of_arp(frame: bytes, mac: bytes, addresses: frozenset[bytes]) -> str:
    if len(frame) < 42 or frame[14:20] != _ARP_FOR_IPV4:
        return "protocol"
    if frame[22:28] != mac:
        return "mac"
    # A probe for a free address has no sender address (RFC 5227).
    sender = frame[28:32]
    return "" if sender in addresses or sender == _NOBODY else "address"


def _refusal_of_ipv4(frame: bytes, addresses: frozenset[bytes], routed: Container[bytes]) -> str:
    # The lower half of the first byte counts the header's words of four bytes.
    header = 4 * (frame[14] & 0x0F) if len(frame) >= 34 else 0
    if header < 20 or frame[14] >> 4 != 4:
        return "protocol"
    ports = b""
    # Only the first fragment has the ports: its offset is zero.
    if frame[23] == _UDP and not (frame[20] & 0x1F or frame[21]):
        ports = frame[14 + header : 18 + header]
        if len(ports) < 4:
            # A fragment that ends before its ports would hide them.
            return "protocol"
    sender = frame[26:30]
    if sender in addresses or (sender != _NOBODY and sender in routed):
        return "dhcp" if ports[:2] == _DHCP_SERVER else ""
    # A client without an address may only ask for one.
    return "" if sender == _NOBODY and ports == _DHCP_REQUEST else "address"
