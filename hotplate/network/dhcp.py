"""dnsmasq's command line and files: what it serves on one segment.

It hands out fixed addresses by MAC address only, knows the names of the segment and asks nobody
else.  Source of the options: dnsmasq(8) of dnsmasq 2.90.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

METADATA_ADDRESS = IPv4Address("169.254.169.254")
LEASE_SECONDS = 86400
SERVER_PORT, CLIENT_PORT = 67, 68
ETHERNET_MTU = 1500


@dataclass(frozen=True)
class Lease:
    """What one port is given.

    :param names: the host name first; none for a port without one.
    """

    mac: str
    addresses: tuple[IPv4Address, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subnet:
    """A range of a segment's addresses and what its DHCP server says of them.

    :param network: where the ports' addresses are.
    :param server: the address of the segment's own services; the route to the metadata address
        leads there.
    :param gateway: the default route that is handed out; None for none.
    :param routes: more routes that are handed out (Neutron's ``host_routes``).
    :param name_servers: what is handed out in the place of the segment's own.
    :param domain: the search domain, and that of the ports' names.
    :param dhcp: whether addresses are handed out at all.
    :param mtu: bytes of a packet; handed out where it is less than Ethernet's.
    """

    network: IPv4Network
    server: IPv4Address
    gateway: IPv4Address | None = None
    routes: tuple[tuple[IPv4Network, IPv4Address], ...] = ()
    name_servers: tuple[IPv4Address, ...] = field(default=())
    domain: str = "novalocal"
    dhcp: bool = True
    mtu: int = ETHERNET_MTU


def command(
    program: str, subnets: Sequence[Subnet], *, interfaces: str, hosts: str, names: str
) -> list[str]:
    """Return dnsmasq's command line.

    :param subnets: one or more, which do not overlap; the domain is the first's.
    :param interfaces: where it serves, with ``*`` for any rest of a name.
    :param hosts: the file with :func:`hosts`, read again at a SIGHUP.
    :param names: the same with :func:`names`.
    """
    domain = subnets[0].domain
    handed_out = [
        option
        for number, subnet in enumerate(subnets)
        if subnet.dhcp
        for option in _handing_out(subnet, f"subnet{number}")
    ]
    return [
        program,
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--user=root",
        "--pid-file=",
        "--log-facility=-",
        "--quiet-dhcp",
        "--no-hosts",
        "--no-resolv",
        "--no-ping",
        f"--interface={interfaces}",
        "--except-interface=lo",
        f"--addn-hosts={names}",
        f"--domain={domain}",
        f"--local=/{domain}/",
        *(_WITH_DHCP if handed_out else ()),
        *([f"--dhcp-hostsfile={hosts}"] if handed_out else ()),
        *handed_out,
    ]


_WITH_DHCP = ("--dhcp-authoritative", "--leasefile-ro")


def _handing_out(subnet: Subnet, tag: str) -> list[str]:
    """Return the options of a subnet that has DHCP.

    :param tag: marks who is given an address of this subnet; the options are for them alone.
    """
    routes = [(IPv4Network((METADATA_ADDRESS, 32)), subnet.server), *subnet.routes]
    if subnet.gateway is not None:
        # Who takes this option does not look at the one for the router (RFC 3442).
        routes.append((IPv4Network("0.0.0.0/0"), subnet.gateway))
    static = ",".join(f"{network},{hop}" for network, hop in routes)
    servers = ",".join(str(each) for each in subnet.name_servers or (subnet.server,))
    first, mask = subnet.network.network_address, subnet.network.netmask
    options = [
        f"router{f',{subnet.gateway}' if subnet.gateway else ''}",
        f"classless-static-route,{static}",
        f"dns-server,{servers}",
        f"domain-search,{subnet.domain}",
        *([f"mtu,{subnet.mtu}"] if subnet.mtu < ETHERNET_MTU else []),
    ]
    return [
        f"--dhcp-range=set:{tag},{first},static,{mask},{LEASE_SECONDS}s",
        *(f"--dhcp-option=tag:{tag},option:{each}" for each in options),
    ]


def hosts(leases: Iterable[Lease]) -> str:
    """Return the file that says who gets which address and host name (``--dhcp-hostsfile``)."""
    lines = (
        ",".join([lease.mac, str(lease.addresses[0]), *lease.names[:1]])
        for lease in leases
        if lease.addresses
    )
    return "".join(f"{line}\n" for line in lines)


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

    dnsmasq keeps a lease, and the name with it, until then or for a day.
    """
    fields = struct.pack("!4BIHH4s12x", 1, 1, len(mac), 0, 0, 0, 0, address.packed)
    magic, options = b"\x63\x82\x53\x63", b"\x35\x01\x07\x36\x04" + server.packed + b"\xff"
    return fields + mac.ljust(16, b"\0") + bytes(192) + magic + options
