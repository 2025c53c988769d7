"""A private link segment: machines with their own addresses, DHCP, names, metadata.

A machine on a segment reaches the other ports of the segment and the segment's services: DHCP and
names by dnsmasq, and listeners of the harness at the metadata address. Nothing else can be
reached: the services are alone in their network namespace.

A port is identified by the link on which its frames arrive. Its listeners take connections from
that link alone, and frames with a spoofed sender are dropped at the switch
(:mod:`~hotplate.network.frames`).
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Any, Self

from hotplate.children.keeper import Child, Keeper
from hotplate.errors import HostError, MachineLostError, UsageError
from hotplate.host_tools import find_tool
from hotplate.network import dhcp, helper, links
from hotplate.network.dhcp import (
    METADATA_ADDRESS,
    Address,
    Lease,
    Network,
    Subnet,
)
from hotplate.network.frames import ETHERNET_MTU, MAX_MTU

#: A MAC address of one machine, in lower case; the lowest bit of the first byte marks a group
#: address (IEEE 802).
MAC = re.compile(r"[0-9a-f][02468ace](:[0-9a-f]{2}){5}")
#: A host name (RFC 1123), in lower case.
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
DOMAIN = re.compile(rf"{NAME.pattern}(\.{NAME.pattern})*")
#: Addresses that no private network may use: link-local, loopback, multicast.
NO_SEGMENT: tuple[Network, ...] = (
    *(IPv4Network("169.254.0.0/16"), IPv4Network("127.0.0.0/8"), IPv4Network("224.0.0.0/3")),
    *(IPv6Network("fe80::/10"), IPv6Network("::/8"), IPv6Network("ff00::/8")),
)
#: The module of the helper process.
HELPER = "hotplate.network.helper"
#: The programs that a segment needs.
TOOLS = ("ip", "dnsmasq")
#: Their directories on Debian, which are not in an ordinary user's PATH.
SYSTEM_PROGRAMS = "/usr/sbin:/sbin"
#: Limit of the ports of a segment; each port is two interfaces.
MAX_PORTS = 250
#: Limit of the addresses, and of the names, of a port.
MAX_OF_A_PORT = 16
#: The TCP ports at the metadata address of IPv6: Neutron has the metadata alone there.
IPV6_SERVICES = (80,)


class Port:
    """Attachment of one machine to a segment; a context manager that removes it.

    Made by :meth:`Segment.port`.

    :ivar listeners: by TCP port, a listening socket at the metadata address for the connections of
        that machine alone.
    :ivar ipv6_listeners: the same at the metadata address of IPv6; empty without an IPv6 address.
    :ivar router: whether it is a router's port, which has no listeners.
    """

    def __init__(
        self,
        segment: Segment,
        number: int,
        lease: Lease,
        listeners: list[int],
        *,
        router: bool = False,
    ) -> None:
        self.segment = segment
        self.number = number
        self.lease = lease
        self.router = router
        # Those of IPv4 first, as port() has asked for them.
        ipv4, ipv6 = listeners[: len(segment.services)], listeners[len(segment.services) :]
        self.listeners = {
            port: socket.socket(fileno=descriptor)
            for port, descriptor in zip(segment.services, ipv4, strict=False)
        }
        self.ipv6_listeners = {
            port: socket.socket(fileno=descriptor)
            for port, descriptor in zip(IPV6_SERVICES, ipv6, strict=False)
        }
        self.delay = self.loss = 0.0
        self.parted: set[Port] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def mac(self) -> str:
        """Return the MAC address that the machine's interface must have."""
        return self.lease.mac

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Return the port's addresses; DHCP hands out the first of each version."""
        return self.lease.addresses

    def plug(self) -> socket.socket:
        """Return the machine's end of a new cable, for QEMU's ``dgram``: each datagram is a frame.

        The cable before is unplugged, so that each start of a machine has a cable without old
        frames.
        """
        self.segment.forget_leases(self)
        return socket.socket(fileno=self.segment.request("plug", number=self.number)[1][0])

    def plug_in(self, end: socket.socket) -> None:
        """Plug in a machine's own end, a socket with one frame a datagram, which stays open here.

        The cable before is unplugged.
        """
        self.segment.forget_leases(self)
        self.segment.request("plug_in", end.fileno(), number=self.number)

    def connect(self, port: int, *, seconds: float = 5.0) -> socket.socket:
        """Connect to a TCP port of the machine, at its first address, as the segment's services do.

        :raises ConnectionError: when nothing answers.
        """
        address = str(self.addresses[0])
        ipv6 = self.addresses[0].version == 6
        connection = socket.socket(fileno=self.segment.request("socket", ipv6=ipv6)[1][0])
        connection.settimeout(seconds)
        try:
            connection.connect((address, port))
        except OSError as error:
            connection.close()
            raise ConnectionError(f"no connection to {address} port {port}: {error}") from error
        connection.settimeout(None)
        return connection

    def shape(self, *, delay: float = 0.0, loss: float = 0.0) -> None:
        """Make the link slow or lossy; without arguments, good again.

        :param delay: additional seconds for each frame, each way.
        :param loss: the share of frames that are lost each way, 0 to 1.
        :raises UsageError: for an invalid time or share.
        """
        if not 0 <= delay <= 60:
            raise UsageError(f"a delay is 0 to 60 seconds, not {delay}")
        if not 0 <= loss <= 1:
            raise UsageError(f"a loss is a share from 0 to 1, not {loss}")
        self.delay, self.loss = delay, loss
        self._set_link()

    def part(self, *others: Port) -> None:
        """Stop all frames between this port and these other ports of the segment, both ways."""
        for other in others:
            self._mark_parted(other)
            other._mark_parted(self)

    def join(self, *others: Port) -> None:
        """Undo :meth:`part`."""
        for other in others:
            for one, two in ((self, other), (other, self)):
                one.parted.discard(two)
                one._set_link()

    def counts(self) -> dict[str, int]:
        """Return the counts of the port's frames by fate: ``sent``, ``refused: address``, ..."""
        return dict(self.segment.request("counts", number=self.number)[0])

    def ask(self) -> set[Address]:
        """Return the port's addresses for which the machine has answered, and ask again.

        It is asked by ARP and by neighbour discovery. Answers since the last call count, so the
        first call does not tell the present state.
        """
        answers = self.segment.request("ask", number=self.number)[0]
        return {ip_address(each) for each in answers}

    def close_listeners(self) -> None:
        """Close the listeners, which a port that was removed may still have."""
        for listener in (*self.listeners.values(), *self.ipv6_listeners.values()):
            listener.close()
        self.listeners, self.ipv6_listeners = {}, {}

    def close(self) -> None:
        """Remove the port; do nothing when it was removed."""
        self.close_listeners()
        self.segment.remove(self)

    def _mark_parted(self, other: Port) -> None:
        if other.segment is not self.segment or other is self:
            raise UsageError("only two ports of one segment can be parted")
        self.parted.add(other)
        self._set_link()

    def _set_link(self) -> None:
        self.segment.request(
            "link",
            number=self.number,
            delay=self.delay,
            loss=self.loss,
            parted=[other.number for other in self.parted],
        )


class Segment:
    """A private network between machines; a context manager that removes all it made.

    :param name: for messages.
    :param subnet: its addresses and DHCP settings; :meth:`add_subnet` adds more.
    :param directory: for ``dhcp.log``, dnsmasq's messages.
    :param services: the TCP ports at 169.254.169.254 that the harness answers on.
    :param on_exit: called with dnsmasq's exit status and last words if it ends by itself.

    >>> with Segment("private", subnet, directory=folder) as segment:  # doctest: +SKIP
    ...     web = segment.port(mac="fa:16:3e:00:00:05", addresses=[IPv4Address("10.0.0.5")])
    ...     web.listeners[80].accept()
    """

    def __init__(
        self,
        name: str,
        subnet: Subnet,
        *,
        directory: Path,
        services: Iterable[int] = (80,),
        on_exit: Callable[[int, str], None] = lambda *_: None,
    ) -> None:
        _check_subnet(name, subnet)
        self.name = name
        self.subnets: tuple[Subnet, ...] = (subnet,)
        self._program = ""
        self.directory = directory
        self.services = tuple(services)
        # 02: administered locally, and of one machine (IEEE 802).
        self.mac = "02:" + ":".join(f"{each:02x}" for each in secrets.token_bytes(5))
        self.ports: dict[int, Port] = {}
        self._on_exit = on_exit
        self._keeper = Keeper(HELPER)
        self._server: Child | None = None
        self._closing = False
        self._lock = threading.Lock()
        self._files = Path()
        self._last = 0

    def __enter__(self) -> Self:
        ip, self._program = (find_tool(name, besides=SYSTEM_PROGRAMS) for name in TOOLS)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._keeper)
            self._files = Path(self._open(ip))
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._server = self._serve()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, wait: bool = True) -> None:
        """End the segment: its ports, its services, its namespaces.

        :param wait: until they are gone.
        """
        # First: from here on dnsmasq's end is expected.
        self._closing = True
        for port in tuple(self.ports.values()):
            port.close_listeners()
        self.ports = {}
        if not wait:
            self._keeper.leave()
            return
        self._keeper.close()
        # The helper removes its directory itself, unless it was killed.
        if self._files.name:
            shutil.rmtree(self._files, ignore_errors=True)

    def add_subnet(self, subnet: Subnet) -> None:
        """Add a range of addresses; clients that wait for DHCP meanwhile retry by themselves.

        :raises UsageError: for a subnet that is invalid or overlaps another.
        """
        _check_subnet(self.name, subnet)
        with self._lock:
            for other in self.subnets:
                if _overlap(other.network, subnet.network):
                    raise UsageError(
                        f'the network "{self.name}" has the addresses {other.network} already, '
                        f"which {subnet.network} overlaps"
                    )
            self.request("subnet", at=_at(subnet), gateway=_gateway(subnet))
            self.subnets = (*self.subnets, subnet)
            # dnsmasq reads its ranges at its start only.
            self._restart()

    def forget_leases(self, port: Port) -> None:
        """Let a port's next machine have its address by DHCPv6.

        Each system has an identity of its own there, and dnsmasq keeps the address for the last.
        """
        subnets = [self.subnet_with(each) for each in port.addresses if each.version == 6]
        if port.router or not any(
            each and each.dhcp and each.ipv6_mode != "slaac" for each in subnets
        ):
            return
        with self._lock:
            self._restart()

    def _restart(self) -> None:
        # Without a server, _ended() does not report the end of this one.
        before, self._server = self._server, None
        if before is not None:
            before.kill()
        self._server = self._serve()

    def subnet_with(self, address: Address) -> Subnet | None:
        """Return the subnet of an address."""
        return next((each for each in self.subnets if address in each.network), None)

    def port(
        self,
        *,
        mac: str,
        addresses: Sequence[Address],
        names: Sequence[str] = (),
        secured: bool = True,
    ) -> Port:
        """Make a port.

        :param mac: its MAC address; frames with another are dropped.
        :param addresses: its addresses; DHCP hands out the first of each version, and packets
            from others are dropped.
        :param names: its names for the other machines; DHCP hands out the first as host name.
        :param secured: whether frames are dropped as said; without, it may also send with the tags
            of VLANs, and with any address.
        :raises UsageError: for values that are malformed, outside of the subnet or taken.
        """
        lease = Lease(mac.lower(), tuple(addresses), tuple(name.lower() for name in names))
        with self._lock:
            self._check(lease, reserved={each.gateway for each in self.subnets})
            self._last += 1
            listen = [(str(METADATA_ADDRESS), port) for port in self.services]
            if any(each.version == 6 for each in addresses):
                listen += [(links.METADATA_IPV6_ADDRESS, port) for port in IPV6_SERVICES]
            _, listeners = self.request(
                "port",
                number=self._last,
                mac=lease.mac,
                addresses=[str(address) for address in lease.addresses],
                listen=listen,
                secured=secured,
            )
            port = self.ports[self._last] = Port(self, self._last, lease, listeners)
            self._write_tables()
        return port

    def router_port(self, *, mac: str, address: Address) -> Port:
        """Make a port for a router, whose packets may come from outside of the subnet.

        The segment's DHCP and other services are not reachable from it.

        :param address: the router's own; it may be the gateway's.
        :raises UsageError: see :meth:`port`.
        """
        lease = Lease(mac.lower(), (address,))
        with self._lock:
            self._check(lease, reserved=set())
            self._last += 1
            self.request("router_port", number=self._last, mac=lease.mac, address=str(address))
            port = self.ports[self._last] = Port(self, self._last, lease, [], router=True)
        return port

    def remove(self, port: Port) -> None:
        """Remove a port; do nothing when it is gone. See :meth:`Port.close`."""
        with self._lock:
            if self.ports.pop(port.number, None) is None:
                return
            for other in self.ports.values():
                other.parted.discard(port)
            # A helper that was killed has taken all of its ports with it.
            with contextlib.suppress(MachineLostError):
                self.request("remove", number=port.number)
                self._write_tables()

    def request(self, do: str, *fds: int, **arguments: object) -> tuple[Any, list[int]]:
        """Send a request to the helper process; return its answer and the descriptors with it.

        :param fds: the descriptors to send.
        :raises HostError: when the request failed.
        :raises MachineLostError: when the helper is gone.
        """
        try:
            return self._keeper.request(do, fds, **arguments)
        except OSError as error:
            raise HostError(f'the network "{self.name}" cannot do "{do}": {error}') from error

    # -- inside ----------------------------------------------------------------------------------

    def _serve(self) -> Child:
        return self._keeper.spawn(
            dhcp.command(
                self._program,
                self.subnets,
                interfaces=f"{links.HOST}*",
                hosts=str(self._files / helper.HOSTS),
                names=str(self._files / helper.NAMES),
            ),
            # The helper, as another user, may not enter our private directories.
            directory=Path("/"),
            stderr=self.directory / "dhcp.log",
            on_exit=self._ended,
            confine=True,
        )

    def _open(self, ip: str) -> str:
        try:
            answer = self._keeper.request(
                "open",
                ip=ip,
                mac=self.mac,
                at=_at(self.subnets[0]),
                gateway=_gateway(self.subnets[0]),
                # A guest without the DHCP option sends packets of Ethernet's size on all networks.
                mtu=max(ETHERNET_MTU, self.subnets[0].mtu),
                metadata=str(METADATA_ADDRESS),
                base=tempfile.gettempdir(),
            )[0]
        except OSError as error:
            raise HostError(
                f"this host does not allow networks between servers: {error}",
                hint="sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000",
            ) from error
        return str(answer)

    def _write_tables(self) -> None:
        leases = [port.lease for port in self.ports.values() if not port.router]
        self.request(
            "tables",
            hosts=dhcp.hosts(leases),
            names=dhcp.names(leases, self.subnets[0].domain),
            server=self._server.pid if self._server is not None else 0,
        )

    def _ended(self, status: int) -> None:
        if not self._closing and self._server is not None:
            self._on_exit(status, self._server.complaint())

    def _check(self, lease: Lease, *, reserved: set[Address | None]) -> None:
        """Check a port's names and addresses, and refuse invalid ones.

        :param reserved: addresses that only a router may have.
        """
        others = [port.lease for port in self.ports.values()]
        if len(others) >= MAX_PORTS:
            raise UsageError(f'the network "{self.name}" has {MAX_PORTS} ports and takes no more')
        if not MAC.fullmatch(lease.mac):
            raise UsageError(f'"{lease.mac}" is not the MAC address of one machine')
        if lease.mac in {self.mac, *(other.mac for other in others)}:
            raise UsageError(f'the MAC address "{lease.mac}" is taken on "{self.name}"')
        for name in lease.names:
            if not NAME.fullmatch(name):
                raise UsageError(f'"{name}" is not a host name: letters, digits and "-"')
        if max(len(lease.addresses), len(lease.names)) > MAX_OF_A_PORT:
            raise UsageError(f"a port has at most {MAX_OF_A_PORT} addresses and as many names")
        if not lease.addresses or len({*lease.addresses}) < len(lease.addresses):
            raise UsageError("a port needs one address or several different ones")
        taken = {*reserved, *(each.server for each in self.subnets)}
        taken.update(address for other in others for address in other.addresses)
        for address in lease.addresses:
            subnet = self.subnet_with(address)
            if subnet is None or not _is_of(subnet.network, address):
                all_of_them = " and ".join(str(each.network) for each in self.subnets)
                raise UsageError(f'the address "{address}" is not one of {all_of_them}')
            if address in taken:
                raise UsageError(f'the address "{address}" is taken on "{self.name}"')


@contextlib.contextmanager
def trial(directory: Path) -> Iterator[Port]:
    """Open a segment with one port, as a test of this host."""
    subnet = Subnet(IPv4Network("10.0.0.0/24"), IPv4Address("10.0.0.2"))
    with Segment("trial", subnet, directory=directory) as segment:
        mac, address = "fa:16:3e:00:00:05", IPv4Address("10.0.0.5")
        with segment.port(mac=mac, addresses=[address]) as port:
            yield port


def refusal() -> str:
    """Return the reason why this host cannot have networks between servers; "" when it can.

    It makes a segment to find out, which takes a fraction of a second.
    """
    with tempfile.TemporaryDirectory(prefix="hotplate-network-") as directory:
        try:
            with trial(Path(directory)):
                return ""
        except HostError as error:
            return error.message


def _check_subnet(name: str, subnet: Subnet) -> None:
    if not 8 <= subnet.network.prefixlen <= subnet.network.max_prefixlen - 2:
        raise UsageError(f'the network "{name}" has no room for machines: {subnet.network}')
    if subnet.mtu > MAX_MTU:
        raise UsageError(
            f'the network "{name}" has an MTU of {subnet.mtu}; it is {MAX_MTU} at most'
        )
    for address in (subnet.server, *([subnet.gateway] if subnet.gateway else [])):
        if not _is_of(subnet.network, address):
            raise UsageError(f'the address "{address}" is not one of {subnet.network}')
    if any(_overlap(subnet.network, each) for each in NO_SEGMENT):
        raise UsageError(f'the network "{name}" cannot have the addresses {subnet.network}')
    if not DOMAIN.fullmatch(subnet.domain):
        raise UsageError(f'"{subnet.domain}" is not a domain of host names')


def _at(subnet: Subnet) -> str:
    """Return the services' address on a subnet, with the length of its prefix."""
    return f"{subnet.server}/{subnet.network.prefixlen}"


def _gateway(subnet: Subnet) -> str:
    """Return the gateway that the services stand in for; "" when there is none."""
    # A gateway of IPv6 is known by its router's announcement alone.
    return str(subnet.gateway or "") if subnet.network.version == 4 else ""


def _overlap(one: Network, other: Network) -> bool:
    # IPv4Network.overlaps() takes no IPv6Network.
    return one.version == other.version and one.overlaps(other)


def _is_of(network: Network, address: Address) -> bool:
    """Return whether a machine may have an address of a network."""
    # IPv6 has no broadcast address.
    ends = {network.network_address, *([network.broadcast_address] if network.version == 4 else [])}
    return address in network and address not in ends
