"""dnsmasq's command line and files for one segment.

It hands out fixed addresses by MAC address only, resolves the names of the segment and has no
upstream server. Source of the options: dnsmasq(8) of dnsmasq 2.90.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeAlias

from hotplate.network.frames import ETHERNET_MTU

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

METADATA_ADDRESS = IPv4Address("169.254.169.254")
LEASE_SECONDS = 86400
SERVER_PORT, CLIENT_PORT = 67, 68


@dataclass(frozen=True)
class Lease:
    """The addresses and names of one port.

    :param names: the host name first; empty for a port without a name.
    """

    mac: str
    addresses: tuple[Address, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subnet:
    """A range of a segment's addresses and the settings that its DHCP server hands out.

    :param network: the range of the ports' addresses.
    :param server: the address of the segment's own services; the route to the metadata address
        leads there.
    :param gateway: the default route to hand out; None for none.
    :param routes: further routes to hand out (Neutron's ``host_routes``).
    :param name_servers: name servers to hand out instead of the segment's own.
    :param domain: the search domain, and that of the ports' names.
    :param dhcp: whether addresses are handed out.
    :param mtu: bytes of a packet; handed out when it is not Ethernet's.
    :param ipv6_mode: how a router announces the subnet, as Neutron's ``ipv6_ra_mode``; "" when none
        does, and for IPv4.
    """

    network: Network
    server: Address
    gateway: Address | None = None
    routes: tuple[tuple[Network, Address], ...] = ()
    name_servers: tuple[Address, ...] = field(default=())
    domain: str = "novalocal"
    dhcp: bool = True
    mtu: int = ETHERNET_MTU
    ipv6_mode: str = ""


def command(
    program: str, subnets: Sequence[Subnet], *, interfaces: str, hosts: str, names: str
) -> list[str]:
    """Return dnsmasq's command line.

    :param subnets: one or more, which do not overlap; the domain is that of the first. Those with
        ``slaac`` are left to their router.
    :param interfaces: interfaces to serve, with ``*`` as a wildcard at the end of a name.
    :param hosts: the file written by :func:`hosts`, read again at a SIGHUP.
    :param names: the file written by :func:`names`, read again at a SIGHUP.
    """
    domain = subnets[0].domain
    handed_out = [
        option
        for number, subnet in enumerate(subnets)
        if subnet.dhcp and subnet.ipv6_mode != "slaac"
        for option in _handing_out(subnet, f"subnet{number}")
    ]
    return [
        program,
        *_OPTIONS,
        # Neither the names nor the name servers of the host.
        "--no-hosts",
        "--no-resolv",
        # It would wait for an answer of somebody else before it hands out an address.
        "--no-ping",
        f"--interface={interfaces}",
        f"--addn-hosts={names}",
        f"--domain={domain}",
        f"--local=/{domain}/",
        *(_WITH_DHCP if handed_out else ()),
        *([f"--dhcp-hostsfile={hosts}"] if handed_out else ()),
        *handed_out,
    ]


_OPTIONS = (
    # A fork would hide its end from the helper, its parent.
    "--keep-in-foreground",
    # Not the host's /etc/dnsmasq.conf.
    "--conf-file=/dev/null",
    # It would become a user that does not exist in the namespace.
    "--user=root",
    # None: the default file is one for the whole host.
    "--pid-file=",
    # Messages go to standard error, not to the host's syslog.
    "--log-facility=-",
    "--quiet-dhcp",
    "--quiet-dhcp6",
    "--quiet-ra",
    # --interface adds the loopback interface by itself.
    "--except-interface=lo",
)
_WITH_DHCP = (
    # A client that asks for a lease that dnsmasq does not know is answered at once, not ignored.
    "--dhcp-authoritative",
    # No lease outlives the segment.
    "--leasefile-ro",
    # A guest's word for its own name is not sent back, nor answered for, as with Neutron: there the
    # names are those of the ports. systemd-networkd starts systemd-hostnamed for a name it is sent.
    "--dhcp-ignore-names",
)


def _handing_out(subnet: Subnet, tag: str) -> list[str]:
    """Return the options of a subnet that has DHCP.

    :param tag: marks the clients with an address of this subnet; the options are for them alone.
    """
    if isinstance(subnet.network, IPv6Network):
        return _handing_out_ipv6(subnet, subnet.network, tag)
    routes = [(IPv4Network((METADATA_ADDRESS, 32)), subnet.server), *subnet.routes]
    if subnet.gateway is not None:
        # A client that takes this option ignores the router option (RFC 3442).
        routes.append((IPv4Network("0.0.0.0/0"), subnet.gateway))
    static = ",".join(f"{network},{hop}" for network, hop in routes)
    servers = ",".join(str(each) for each in subnet.name_servers or (subnet.server,))
    first, mask = subnet.network.network_address, subnet.network.netmask
    options = [
        f"router{f',{subnet.gateway}' if subnet.gateway else ''}",
        f"classless-static-route,{static}",
        f"dns-server,{servers}",
        f"domain-search,{subnet.domain}",
        *([f"mtu,{subnet.mtu}"] if subnet.mtu != ETHERNET_MTU else []),
    ]
    return [
        # "static" hands out addresses of the hosts file only.
        f"--dhcp-range=set:{tag},{first},static,{mask},{LEASE_SECONDS}s",
        *(f"--dhcp-option=tag:{tag},option:{each}" for each in options),
    ]


def _handing_out_ipv6(subnet: Subnet, network: IPv6Network, tag: str) -> list[str]:
    servers = ",".join(f"[{each}]" for each in subnet.name_servers or (subnet.server,))
    first, length = network.network_address, network.prefixlen
    return [
        f"--dhcp-range=set:{tag},{first},static,{length},{LEASE_SECONDS}s",
        f"--dhcp-option=tag:{tag},option6:dns-server,{servers}",
        f"--dhcp-option=tag:{tag},option6:domain-search,{subnet.domain}",
    ]


#: dnsmasq's mode of a range for each ``ipv6_ra_mode``: without DHCP, with its options, and with
#: addresses from the segment's server.
_RA_MODES = {"slaac": "ra-only", "dhcpv6-stateless": "ra-stateless", "dhcpv6-stateful": "static"}


def announcing(program: str, subnets: Iterable[tuple[str, Subnet]]) -> list[str]:
    """Return the command line of a dnsmasq that sends a router's advertisements, and nothing else.

    It puts the MTU of the interface into them by itself.  Its DHCP answers do not leave the router:
    a segment's switch drops them.

    :param subnets: each subnet with an ``ipv6_mode``, and the router's interface on it.
    """
    words = [program, *_OPTIONS, "--port=0", "--enable-ra", "--leasefile-ro"]
    for number, (interface, subnet) in enumerate(subnets):
        first, length = subnet.network.network_address, subnet.network.prefixlen
        mode = _RA_MODES[subnet.ipv6_mode]
        words += [
            f"--interface={interface}",
            f"--dhcp-range=set:subnet{number},{first},{mode},{length}",
        ]
        if subnet.name_servers:
            servers = ",".join(f"[{each}]" for each in subnet.name_servers)
            words.append(f"--dhcp-option=tag:{interface},option6:dns-server,{servers}")
    return words


def hosts(leases: Iterable[Lease]) -> str:
    """Return the file with the addresses and host name of each MAC (``--dhcp-hostsfile``).

    A port has its first address of each version by DHCP.
    """
    lines = (
        ",".join([lease.mac, *_handed_out(lease), *lease.names[:1]])
        for lease in leases
        if lease.addresses
    )
    return "".join(f"{line}\n" for line in lines)


def _handed_out(lease: Lease) -> list[str]:
    of_version: dict[int, str] = {}
    for each in lease.addresses:
        of_version.setdefault(each.version, str(each) if each.version == 4 else f"[{each}]")
    return [*of_version.values()]


def names(leases: Iterable[Lease], domain: str) -> str:
    """Return the file of names, which has the format of hosts(5)."""
    lines = (
        " ".join([str(address), *(f"{name}.{domain} {name}" for name in lease.names)])
        for lease in leases
        for address in lease.addresses
        if lease.names
    )
    return "".join(f"{line}\n" for line in lines)


def release(mac: bytes, address: IPv4Address, server: IPv4Address) -> bytes:
    """Return the message by which a machine gives its address back (RFC 2131, DHCPRELEASE).

    Without it dnsmasq keeps a lease, and its name, for a day.
    """
    # op, htype, hlen, hops, xid, secs, flags and ciaddr; yiaddr, siaddr and giaddr are zero.
    fields = struct.pack("!4BIHH4s12x", 1, 1, len(mac), 0, 0, 0, 0, address.packed)
    # Option 53, the message type, is 7 (DHCPRELEASE); option 54 is the server's address.
    magic, options = b"\x63\x82\x53\x63", b"\x35\x01\x07\x36\x04" + server.packed + b"\xff"
    # chaddr has 16 bytes; sname and file together have 192.
    return fields + mac.ljust(16, b"\0") + bytes(192) + magic + options
