"""The links of a segment's namespace, and of a router's: one pair of interfaces for each port.

Source: ip(8) of iproute2, packet(7), ethtool's ``ethtool.h``, the kernel's ``ip-sysctl``.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hotplate.children import mounts
from hotplate.network.frames import MAX_MTU, VLAN_TAG

#: Where Neutron serves the metadata over IPv6, at port 80 alone.
METADATA_IPV6_ADDRESS = "fe80::a9fe:a9fe"
#: Name prefix of the services' interfaces, followed by the number of the port.
HOST = "h"
#: Name prefix of the other end, from which the switch takes the frames.
SWITCH = "s"
_SETTINGS = {
    # A new namespace takes over from the host each value that is not set here.
    "net/ipv4/ip_forward": "0",
    # Without forwarding, the kernel drops what REFUSE_BEYOND refuses, and sends no message.
    "net/ipv4/conf/default/forwarding": "1",
    # A router of the kernel's sends a machine five such messages at once and then one a second;
    # a second limit beside that is shared with the host's own messages (icmp_msgs_per_sec).
    "net/ipv4/icmp_ratemask": "0",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/conf/all/arp_ignore": "0",
    "net/ipv4/conf/default/arp_ignore": "0",
    "net/ipv4/conf/all/accept_redirects": "0",
    "net/ipv4/conf/all/send_redirects": "0",
    "net/ipv4/conf/default/send_redirects": "0",
    # IPv6 is for those interfaces that use_ipv6() names.
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
    "net/ipv6/conf/all/forwarding": "0",
    "net/ipv6/conf/default/accept_ra": "0",
    "net/ipv6/conf/default/accept_redirects": "0",
    # Addresses are usable at once: the switch lets nobody else have them.
    "net/ipv6/conf/default/accept_dad": "0",
    # Link-local addresses that belong to the MAC address.
    "net/ipv6/conf/default/addr_gen_mode": "0",
    # Limit of the frames that wait for a machine to take them; QEMU's end is a datagram socket.
    "net/unix/max_dgram_qlen": "512",
}
# From Linux' sockios.h, ethtool.h, socket.h, if_packet.h and if_ether.h.
_SIOCETHTOOL = 0x8946
_ETHTOOL_STXCSUM = 0x17
_ETHTOOL_STSO = 0x1F
_SOL_PACKET = 263
_PACKET_AUXDATA = 8
_PACKET_IGNORE_OUTGOING = 23
# struct tpacket_auxdata: the status, three lengths and offsets, the VLAN's tag and its protocol.
_AUXDATA = struct.Struct("=IIIHHHH")
_TP_STATUS_VLAN_VALID = 1 << 4
_ETH_P_ALL = 3


_FORWARDING = {
    "net/ipv4/ip_forward": "1",
    # Drop packets whose answer would leave by another interface: the sender is spoofed (RFC 3704).
    "net/ipv4/conf/all/rp_filter": "1",
    "net/ipv4/conf/default/rp_filter": "1",
    "net/ipv4/conf/default/accept_redirects": "0",
    "net/ipv4/conf/default/accept_source_route": "0",
    "net/ipv4/conf/all/accept_source_route": "0",
    "net/ipv6/conf/all/forwarding": "1",
}


#: Answer each packet that is not for this namespace with "network unreachable" (RFC 792).
REFUSE_BEYOND = "rule add not iif lo unreachable pref 100"


def prepare(program: str, *commands: str, forwarding: bool = False) -> None:
    """Set up a new network namespace.

    :param commands: more commands of ``ip``.
    :param forwarding: forward packets between its interfaces.
    """
    _set({**_SETTINGS, **(_FORWARDING if forwarding else {})})
    run(program, ["link set dev lo up", *commands])


def _set(settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        path = Path("/proc/sys") / name
        # A kernel may be without IPv6.
        if path.exists() or not name.startswith("net/ipv6/"):
            path.write_text(value)


def use_ipv6(interface: str) -> None:
    """Let an interface have IPv6 addresses; it gets a link-local one."""
    _set({f"net/ipv6/conf/{interface}/disable_ipv6": "0"})


def run(program: str, commands: Iterable[str], *options: str) -> None:
    """Run commands of ``ip``.

    :param options: of the program itself, such as ``-6``.
    :raises OSError: with its last words when it failed.
    """
    # One process for all commands; without -force it stops at the first that fails.
    mounts.run(program, *options, "-batch", "-", stdin="".join(f"{each}\n" for each in commands))


def add(
    program: str, number: int, *, services: str, guest: str, owns: Sequence[tuple[str, str]]
) -> None:
    """Make a port's pair of interfaces.

    :param services: the MAC address of the segment's services.
    :param guest: the MAC address of the port.
    :param owns: the addresses of the port, each with the services' address on its subnet, which
        includes the length of the prefix.
    """
    host = f"{HOST}{number}"
    commands = [serve(number, at) for at in dict.fromkeys(at for _, at in owns)]
    ipv6 = any(":" in address for address, _ in owns)
    if ipv6:
        commands.append(serve(number, f"{METADATA_IPV6_ADDRESS}/64"))
    # Several ports are on one subnet: each address has a route and a neighbour entry of its own,
    # which no answer to an ARP request can change.
    for address, at in owns:
        commands += [
            f"route add {address} dev {host} src {at.partition('/')[0]}",
            f"neighbour replace {address} lladdr {guest} dev {host} nud permanent",
        ]
    _add_pair(program, number, f"address {services}", commands, ipv6=ipv6)


def serve(number: int, at: str) -> str:
    """Return the command that gives the services an address, with its prefix, on a port.

    For IPv6 the port needs :func:`use_ipv6`.
    """
    # Without noprefixroute each port's interface would get a route to the whole subnet.
    return f"address add {at} dev {HOST}{number} noprefixroute{_at_once(at)}"


def _at_once(at: str) -> str:
    # Even with accept_dad off, an IPv6 address is tentative for a moment, and bind() refuses it.
    return " nodad" if ":" in at else ""


def add_of_router(program: str, number: int, *, mac: str, at: str, mtu: int) -> None:
    """Make a router's pair of interfaces.

    :param at: its address with the length of the network's prefix.
    :param mtu: bytes of a packet on that network.
    """
    commands = [f"address add {at} dev {HOST}{number}{_at_once(at)}"]
    _add_pair(program, number, f"address {mac} mtu {mtu}", commands, ipv6=":" in at)


def add_of_container(program: str, name: str, outer: str, *, mac: str) -> None:
    """Make a container's pair of interfaces: its own, and our end, which is up."""
    # Our end takes all frames that the guest may send after raising its own limit.
    pair = f"link add name {name} address {mac} type veth peer name {outer} mtu 65535"
    run(program, [pair, f"link set dev {outer} arp off up"])
    finish_frames(name)


def _add_pair(
    program: str, number: int, settings: str, commands: Iterable[str], *, ipv6: bool
) -> None:
    host, switch = f"{HOST}{number}", f"{SWITCH}{number}"
    pair = [
        f"link add name {host} {settings} type veth peer name {switch} mtu {MAX_MTU + VLAN_TAG}",
        # The switch carries frames; its own end must not answer for an address of the host's.
        f"link set dev {switch} arp off up",
        f"link set dev {host} up",
    ]
    if ipv6:
        run(program, pair)
        use_ipv6(host)
        run(program, commands)
    else:
        run(program, [*pair, *commands])
    finish_frames(host)


def remove(program: str, number: int) -> None:
    """Remove a port's pair of interfaces."""
    run(program, [f"link delete dev {HOST}{number}"])


def finish_frames(interface: str) -> None:
    """Let the kernel segment frames and compute their checksums before they leave an interface.

    Between interfaces of one kernel these steps are left to the receiver.
    """
    for feature in (_ETHTOOL_STSO, _ETHTOOL_STXCSUM):
        value = array.array("I", [feature, 0])
        # struct ifreq, whose ifr_data points to struct ethtool_value: the command, and 0 for "off".
        request = struct.pack("16sP16x", interface.encode(), value.buffer_info()[0])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, _SIOCETHTOOL, request)


def tap(interface: str) -> socket.socket:
    """Return a socket that receives and sends whole frames on an interface."""
    # Protocol 0 receives nothing until bind() sets the interface (packet(7)).
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        # Frames that the kernel itself sends on this interface are not received.
        packets.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        # The kernel takes the tag of a VLAN out of a frame: receive() puts it back.
        packets.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        packets.bind((interface, _ETH_P_ALL))
    except BaseException:
        packets.close()
        raise
    return packets


def receive(packets: socket.socket, size: int) -> bytes:
    """Return a frame as it was sent, from a socket of :func:`tap`; truncated when it is too long.

    :raises OSError: when there is none, or the interface has gone.
    """
    frame, ancillary, _, _ = packets.recvmsg(
        size, socket.CMSG_SPACE(_AUXDATA.size), socket.MSG_DONTWAIT
    )
    for level, kind, data in ancillary:
        if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA) and len(data) >= _AUXDATA.size:
            status, *_, tag, protocol = _AUXDATA.unpack(data[: _AUXDATA.size])
            if status & _TP_STATUS_VLAN_VALID:
                # Behind the two addresses (IEEE 802.1Q).
                return frame[:12] + struct.pack("!HH", protocol or 0x8100, tag) + frame[12:]
    return frame


def listen(number: int, address: str, port: int) -> socket.socket:
    """Listen for connections that arrive from one port of the segment, and from no other.

    :param address: IPv4, or a link-local one of IPv6.
    """
    interface = f"{HOST}{number}"
    ipv6 = ":" in address
    listener = socket.socket(socket.AF_INET6 if ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(interface))
        # A link-local address is one of an interface, given by its number.
        scope = (0, socket.if_nametoindex(interface)) if ipv6 else ()
        listener.bind((address, port, *scope))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener
