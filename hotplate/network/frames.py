"""Checks of the frames that a port sends: no spoofed sender, no unchecked protocol.

As in Neutron's port security: the port's own MAC address, and its own addresses as the sender in
IPv4, IPv6 and ARP, and as the target of neighbour advertisements; no answers of a DHCP server, and
router advertisements of routers only. Other protocols, VLANs among them, are not carried, nor is
IPv6 for a port without an address of it. A router's port may also send packets that come from
outside the segment (:class:`OutsideNetwork`).

Source of the formats: IEEE 802.3, RFC 826 (ARP), RFC 791 (IPv4), RFC 792 (ICMP), RFC 2131 (DHCP),
RFC 8200 (IPv6), RFC 4443 (ICMPv6), RFC 4861 (neighbours and routers), RFC 8415 (DHCPv6).
"""

from __future__ import annotations

import struct
from collections.abc import Container, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

#: Bytes of the largest packet on every network, and of the largest that a network may ask for.
ETHERNET_MTU, MAX_MTU = 1500, 9000
#: Bytes before the packet, without a checksum: two MAC addresses and the protocol.
HEADER = 14
#: Bytes of the tag of a VLAN (IEEE 802.1Q).
VLAN_TAG = 4
#: Bytes of the largest frame of any network.
MAX_FRAME = HEADER + VLAN_TAG + MAX_MTU
IPV4 = b"\x08\x00"
ARP = b"\x08\x06"
IPV6 = b"\x86\xdd"
VLAN = b"\x81\x00"
# Hardware type Ethernet, protocol type IPv4, and the lengths of their addresses.
_ARP_FOR_IPV4 = b"\x00\x01\x08\x00\x06\x04"
_NOBODY, _NOBODY_IPV6 = bytes(4), bytes(16)
_ICMP, _TCP, _UDP, _ICMPV6 = 1, 6, 17, 58
# Headers between IPv6's and the transport's: hop-by-hop options, routing, fragment, destination.
_EXTENSIONS, _FRAGMENT = frozenset((0, 43, 44, 60)), 44
_ADVERTISEMENT = 136
# Router advertisement and redirect.
_OF_ROUTERS = frozenset((134, 137))
# Multicast listener reports, and solicitations of routers and neighbours, which come before the
# first address.
_BEFORE_ADDRESS = frozenset((131, 132, 133, 135, 143))
# Port 67 as the source; and 68 to 67 as source and destination.
_DHCP_SERVER = b"\x00\x43"
_DHCP_REQUEST = b"\x00\x44\x00\x43"
_DHCPV6_SERVER = b"\x02\x23"


class OutsideNetwork(Container[bytes]):
    """The addresses outside of a network, from which a router may forward packets.

    >>> IPv4Address("10.0.1.5").packed in OutsideNetwork(IPv4Network("10.0.0.0/24"))
    True
    >>> IPv4Address("10.0.0.5").packed in OutsideNetwork(IPv4Network("10.0.0.0/24"))
    False
    """

    def __init__(self, network: IPv4Network | IPv6Network) -> None:
        self._first = network.network_address.packed
        self._last = network.broadcast_address.packed

    def __contains__(self, address: object) -> bool:
        if not isinstance(address, bytes) or len(address) != len(self._first):
            return False
        # Big-endian bytes compare as their numbers do.
        return not self._first <= address <= self._last


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
    return macs[1] + macs[0] + IPV4 + _ipv4_header(_UDP, ends, udp) + udp


def network_unreachable(
    frame: bytes, *, mac: bytes, sender: bytes, outside: Sequence[OutsideNetwork]
) -> bytes:
    """Return a router's answer to a packet for which it has no way (RFC 792, type 3).

    A kernel gives it to a machine five times at once and then once a second, which leaves a machine
    with a name server that is not there to its patience.

    :param mac: MAC address of the router, whose address is ``sender``.
    :param outside: the addresses outside of each network that it reaches.
    :return: b"" for other packets, and for those that get no such answer: all but those of TCP and
        UDP, later fragments and malformed ones (RFC 1122, 3.2.2).
    """
    to, packet = frame[30:34], frame[HEADER:]
    if frame[:6] != mac or frame[12:14] != IPV4 or not all(to in each for each in outside):
        return b""
    # A router's interface on a network of IPv6 has no address to answer from.
    if len(sender) != len(_NOBODY):
        return b""
    # The lower half of the first byte counts the header's words of four bytes.
    header = 4 * (packet[0] & 0x0F) if packet else 0
    if header < 20 or len(packet) < header + 8:
        return b""
    if packet[9] not in (_TCP, _UDP) or packet[6] & 0x1F or packet[7]:
        return b""
    # Type, code, checksum and four unused bytes; then its header and eight bytes of its content.
    message = bytes([3, 0, 0, 0]) + bytes(4) + packet[: header + 8]
    checksum = _folded(sum(struct.unpack(f"!{len(message) // 2}H", message)))
    message = message[:2] + struct.pack("!H", checksum) + message[4:]
    return frame[6:12] + mac + IPV4 + _ipv4_header(_ICMP, sender + packet[12:16], message) + message


def _ipv4_header(protocol: int, ends: bytes, content: bytes) -> bytes:
    """Return the header of a packet.

    :param ends: the addresses of sender and receiver.
    """
    # Version 4, a header of five words, no fragment, 64 hops.
    fields = (0x45, 0, 20 + len(content), 0, 0, 64, protocol)
    total = sum(struct.unpack("!10H", struct.pack("!BBHHHBBH", *fields, 0) + ends))
    return struct.pack("!BBHHHBBH", *fields, _folded(total)) + ends


def _folded(total: int) -> int:
    """Return the checksum for a sum of 16-bit words, the checksum among them as zero (RFC 1071)."""
    total = (total & 0xFFFF) + (total >> 16)
    # The second fold adds the carry of the first.
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def link_local(mac: bytes) -> bytes:
    """Return the link-local IPv6 address that belongs to a MAC address (RFC 4291, appendix A)."""
    identifier = bytes([mac[0] ^ 2]) + mac[1:3] + b"\xff\xfe" + mac[3:]
    return b"\xfe\x80" + bytes(6) + identifier


def neighbour_solicitation(mac: bytes, target: bytes) -> bytes:
    """Return a frame that asks for the owner of an IPv6 address.

    :param mac: MAC address of the asker, which asks from its link-local address.
    """
    # The multicast group of all addresses that end in the same three bytes, and its MAC address.
    group = IPv6Address("ff02::1:ff00:0").packed[:13] + target[13:]
    # Type 135, code, checksum and four unused bytes; option 1 is the asker's MAC address.
    message = bytes([135, 0, 0, 0]) + bytes(4) + target + b"\x01\x01" + mac
    ends = link_local(mac) + group
    # The checksum covers the ends, the length and the protocol, too (RFC 8200, 8.1).
    summed = ends + struct.pack("!II", len(message), _ICMPV6) + message
    checksum = _folded(sum(struct.unpack(f"!{len(summed) // 2}H", summed)))
    message = message[:2] + struct.pack("!H", checksum) + message[4:]
    # 255 hops prove that no router has passed it on.
    header = struct.pack("!IHBB", 6 << 28, len(message), _ICMPV6, 255) + ends
    return b"\x33\x33\xff" + target[13:] + mac + IPV6 + header + message


def arp_request(mac: bytes, sender: bytes, target: bytes) -> bytes:
    """Return a broadcast frame that asks for the owner of an address (RFC 826).

    :param mac: MAC address of the asker, whose IPv4 address is ``sender``.
    """
    return b"\xff" * 6 + mac + ARP + _ARP_FOR_IPV4 + b"\0\1" + mac + sender + bytes(6) + target


def answered_address(frame: bytes) -> bytes:
    """Return the address for which a frame answers ARP or neighbour discovery; b"" for others."""
    if frame[12:14] == ARP and frame[14:22] == _ARP_FOR_IPV4 + b"\0\2":
        return frame[28:32]
    if frame[12:14] == IPV6 and frame[20] == _ICMPV6 and frame[54:55] == bytes([_ADVERTISEMENT]):
        return frame[62:78]
    return b""


def refusal(
    frame: bytes,
    mac: bytes,
    addresses: frozenset[bytes],
    *,
    routed: Container[bytes] = (),
    mtu: int = ETHERNET_MTU,
) -> str:
    """Return the reason why a port may not send a frame, one word; "" when it may.

    :param frame: the frame, starting at the destination's MAC address.
    :param mac: the port's MAC address, six bytes.
    :param addresses: the port's addresses, four bytes each for IPv4 and 16 for IPv6; with the
        link-local one if it may use IPv6.
    :param routed: the addresses from which a router's port may forward packets.
    :param mtu: bytes of a packet.
    """
    if not HEADER <= len(frame) <= HEADER + mtu:
        return "size"
    if frame[6:12] != mac:
        return "mac"
    kind = frame[12:14]
    if kind == IPV4:
        return _refusal_of_ipv4(frame, addresses, routed)
    if kind == ARP:
        return _refusal_of_arp(frame, mac, addresses)
    if kind == IPV6 and any(len(each) == 16 for each in addresses):
        return _refusal_of_ipv6(frame, addresses, routed)
    return "protocol"


def refusal_of_size(frame: bytes, *, mtu: int) -> str:
    """Return "size" for a frame that no port may send, else "".

    :param mtu: bytes of a packet; the tag of a VLAN comes on top.
    """
    tag = VLAN_TAG if frame[12:14] == VLAN else 0
    return "" if HEADER + tag <= len(frame) <= HEADER + tag + mtu else "size"


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


def _refusal_of_ipv6(frame: bytes, addresses: frozenset[bytes], routed: Container[bytes]) -> str:
    if len(frame) < 54 or frame[14] >> 4 != 6:
        return "protocol"
    protocol, message = _transport(frame)
    sender = frame[22:38]
    # Only a later fragment has no beginning of the message.
    if message is not None:
        if len(message) < 4:
            return "protocol"
        if protocol == _UDP and message[:2] == _DHCPV6_SERVER:
            return "dhcp"
        if protocol == _ICMPV6 and message[0] in _OF_ROUTERS and routed == ():
            return "router"
        if protocol == _ICMPV6 and message[0] == _ADVERTISEMENT and message[8:24] not in addresses:
            return "address"
    if sender in addresses or (sender != _NOBODY_IPV6 and sender in routed):
        return ""
    early = protocol == _ICMPV6 and message and message[0] in _BEFORE_ADDRESS
    return "" if sender == _NOBODY_IPV6 and early else "address"


def _transport(frame: bytes) -> tuple[int, bytes | None]:
    """Return the protocol in an IPv6 packet, and its message; None in a later fragment."""
    protocol, at = frame[20], 54
    while protocol in _EXTENSIONS:
        header = frame[at : at + 8]
        if len(header) < 8:
            # The headers end before the message, as in a first fragment that hides it.
            return protocol, b""
        if protocol == _FRAGMENT:
            # 13 bits of offset and three others.
            if struct.unpack("!H", header[2:4])[0] >> 3:
                return header[0], None
            at += 8
        else:
            at += 8 + 8 * header[1]
        protocol = header[0]
    return protocol, frame[at:]
