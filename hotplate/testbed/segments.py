"""The networks between a testbed's servers: a segment for each network in use, and their routers.

A network is made for its first server and ends with its last; see
:class:`~hotplate.network.segment.Segment`. A router runs while one of its networks does.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path

from hotplate.cloud.http.addresses import PORTS
from hotplate.cloud.nova.compute import (
    PortAddress,
    RouterInterface,
    RouterSpec,
    ServerPort,
    ServerSpec,
)
from hotplate.errors import HostError, MachineLostError, UsageError
from hotplate.machine import wiring
from hotplate.machine.wiring import Cables, Wiring
from hotplate.network.dhcp import METADATA_ADDRESS, Address, Network, Subnet
from hotplate.network.router import Router
from hotplate.network.segment import Port, Segment

#: The highest number of ports of a server: QEMU gets a limited number of descriptors at start.
MAX_INTERFACES = 8
_FOR_FOLDERS = re.compile("[^A-Za-z0-9-]")


class Segments:
    """The networks of one testbed.  Thread-safe.

    :param directory: each network gets a folder in it, for messages of its DHCP server.
    :param on_loss: called with the error when a network or a router ends by itself.
    """

    def __init__(self, directory: Path, *, on_loss: Callable[[MachineLostError], None]) -> None:
        self.directory = directory
        self._on_loss = on_loss
        self._segments: dict[str, Segment] = {}
        self._routers = _RunningRouters(directory, on_loss=on_loss)
        self._refusal = ""
        self._alone: set[str] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def wired(self, spec: ServerSpec) -> Iterator[Wiring]:
        """Attach a server to its networks while the context lasts.

        On a host without networks between servers, a server is isolated, as long as it shares no
        network with another.

        :raises UsageError: for impossible ports, such as two with one address.
        :raises HostError: when the host cannot do it.
        """
        check(spec)
        with ExitStack() as owned:
            try:
                ports = [owned.enter_context(self.attached(spec, port)) for port in spec.ports]
            except _RefusedError as refused:
                link = owned.enter_context(self._isolated(spec, str(refused)))
            else:
                link = owned.enter_context(Cables(ports, reason=_reason(spec, ports)))
            yield link

    def route(self, routers: Sequence[RouterSpec]) -> None:
        """Connect the networks by these routers from now on.

        :raises UsageError: for an address that a router cannot have.
        :raises HostError: when the host cannot do it.
        """
        with self._lock:
            self._routers.wanted = tuple(routers)
            self._routers.keep_up(self._segments)

    def close(self) -> None:
        """End all networks."""
        with self._lock:
            self._routers.close()
            segments, self._segments = [*self._segments.values()], {}
        for segment in segments:
            segment.close()

    @contextlib.contextmanager
    def attached(self, spec: ServerSpec, port: ServerPort) -> Iterator[Port]:
        """Make a port of a server, and its network when it is the first.

        :raises UsageError: for an impossible port.
        :raises HostError: when the host cannot do it.
        """
        with self._lock, ExitStack() as owned:
            subnets = subnets_of(spec, port)
            segment = self._segment(port, subnets[0])
            # When the port fails, a network that was made for it ends again.
            owned.callback(self._close_unused, port.network_id)
            for subnet in subnets:
                if subnet.network not in {each.network for each in segment.subnets}:
                    segment.add_subnet(subnet)
            made = owned.enter_context(
                segment.port(
                    mac=port.mac,
                    addresses=[ip_address(each.address) for each in port.addresses],
                    names=port.names,
                    secured=port.secured,
                )
            )
            self._routers.keep_up(self._segments)
            # It has succeeded: detach() undoes it later.
            owned.pop_all()
        try:
            yield made
        finally:
            self.detach(port, made)
            made.close()

    def detach(self, port: ServerPort, made: Port) -> None:
        """Remove a port from its network; its listeners close when its context ends."""
        with self._lock:
            made.segment.remove(made)
            self._close_unused(port.network_id)

    def _segment(self, port: ServerPort, subnet: Subnet) -> Segment:
        if self._refusal:
            raise _RefusedError(self._refusal)
        if port.network_id not in self._segments:
            segment = Segment(
                port.network_name,
                subnet,
                directory=self.directory / (_FOR_FOLDERS.sub("-", port.network_id) or "-"),
                services=PORTS,
                on_exit=lambda status, words: self._ended(port.network_name, status, words),
            )
            try:
                # Not a with statement: _close_unused() or close() ends it.
                segment.__enter__()
            except HostError as error:
                # A host with other networks can have them: this one has failed.
                if self._segments:
                    raise
                self._refusal = error.message
                raise _RefusedError(error.message) from error
            self._segments[port.network_id] = segment
        return self._segments[port.network_id]

    def _close_unused(self, network_id: str) -> None:
        segment = self._segments.get(network_id)
        if segment is None or not all(each.router for each in segment.ports.values()):
            return
        del self._segments[network_id]
        # A router that was killed is on no network any more.
        with contextlib.suppress(MachineLostError):
            self._routers.keep_up(self._segments)
        segment.close()

    def _ended(self, name: str, status: int, words: str) -> None:
        why = f": {words}" if words else ""
        self._on_loss(
            MachineLostError(f'the DHCP server of the network "{name}" ended with {status}{why}')
        )

    @contextlib.contextmanager
    def _isolated(self, spec: ServerSpec, why: str) -> Iterator[Wiring]:
        """Wire a server on a host without networks between servers.

        :param why: the reason that there are none.
        """
        mine = {port.network_id: port.network_name for port in spec.ports}
        for port in spec.ports:
            if all(":" in each.address for each in port.addresses):
                raise HostError(
                    f'the server "{spec.name}" would be on the network "{port.network_name}" by '
                    f"IPv6 alone, and on this host a server has IPv4 only: {why}",
                    hint="hotplate doctor",
                )
        with self._lock:
            for network_id in self._alone & mine.keys():
                raise HostError(
                    f'the server "{spec.name}" would share the network "{mine[network_id]}" with '
                    f"another, and on this host servers cannot reach each other: {why}",
                    hint="hotplate doctor; where no server needs another: --wiring guestfwd",
                )
            self._alone |= mine.keys()
        try:
            with wiring.choose(PORTS) as link:
                link.reason = f"{link.reason}; no networks between servers: {why}"
                yield link
        finally:
            with self._lock:
                self._alone -= mine.keys()


@dataclass
class _RunningRouter:
    """A running router.

    :param attached: its interfaces, each with its segment and its number.
    """

    router: Router
    attached: dict[RouterInterface, tuple[Segment, int]] = field(default_factory=dict)


class _RunningRouters:
    """The routers of one testbed: each runs while one of its networks does.

    Not thread-safe: the caller serialises calls.

    :param directory: each router gets a folder in it, for messages.
    :param on_loss: called with the error, in a thread of its own, when a router ends by itself.
    :ivar wanted: the routers as Neutron has them.
    """

    def __init__(self, directory: Path, *, on_loss: Callable[[MachineLostError], None]) -> None:
        self._directory = directory
        self._on_loss = on_loss
        self.wanted: tuple[RouterSpec, ...] = ()
        self._running: dict[str, _RunningRouter] = {}

    def keep_up(self, segments: Mapping[str, Segment]) -> None:
        """Connect each wanted router to those of its networks that run.

        :raises UsageError: for an address that a router cannot have.
        :raises HostError: when the host cannot do it.
        :raises MachineLostError: when a router's process was killed.
        """
        interfaces = {each.id: _present(each, segments) for each in self.wanted}
        for router_id in [*self._running]:
            if not interfaces.get(router_id):
                self._running.pop(router_id).router.close()
        for spec in self.wanted:
            if interfaces[spec.id]:
                self._set(spec, interfaces[spec.id])

    def close(self) -> None:
        """End all of them."""
        running, self._running = self._running, {}
        for each in running.values():
            each.router.close()

    def _set(self, spec: RouterSpec, present: dict[RouterInterface, Segment]) -> None:
        running = self._running.get(spec.id) or self._start(spec)
        for interface, (segment, number) in [*running.attached.items()]:
            # A network that ended and was made again is another segment.
            if present.get(interface) is not segment:
                running.router.detach(number)
                del running.attached[interface]
        for interface, segment in present.items():
            if interface not in running.attached:
                number = running.router.attach(
                    segment, mac=interface.mac, address=ip_address(interface.address)
                )
                running.attached[interface] = (segment, number)
        running.router.set_routes(
            (ip_network(to), ip_address(by))
            for to, by in spec.routes
            if any(_has_hop(each, present[each], ip_address(by)) for each in present)
        )

    def _start(self, spec: RouterSpec) -> _RunningRouter:
        folder = self._directory / (_FOR_FOLDERS.sub("-", spec.id) or "-")
        router = Router(spec.name, directory=folder, on_loss=self._on_loss)
        router.__enter__()
        running = self._running[spec.id] = _RunningRouter(router)
        return running


def _has_hop(interface: RouterInterface, segment: Segment, hop: Address) -> bool:
    """Return whether a router's network has a next hop; the kernel refuses those of others.

    A gateway that is no router's, as that of an external network, leads nowhere.
    """
    subnet = segment.subnet_with(ip_address(interface.address))
    if subnet is None or hop not in subnet.network:
        return False
    return hop != subnet.gateway or any(hop in each.addresses for each in segment.ports.values())


class _RefusedError(HostError):
    """This host cannot have networks between servers; the message has the reason."""


def check(spec: ServerSpec) -> None:
    """Refuse ports that no machine can have.

    :raises UsageError: names the server.
    """
    if len(spec.ports) > MAX_INTERFACES:
        raise UsageError(
            f'the server "{spec.name}" has {len(spec.ports)} ports, and at most {MAX_INTERFACES} '
            "can be plugged in"
        )


def subnets_of(spec: ServerSpec, port: ServerPort) -> list[Subnet]:
    """Return the subnets of a port's addresses, as a network's DHCP server announces them.

    The first of each version has the address that DHCP hands out.

    :raises UsageError: when the port has no address, or its subnet needs a router outside of the
        cloud.
    """
    if not port.addresses:
        raise UsageError(
            f'the server "{spec.name}" has no address on the network "{port.network_name}", and so '
            "could not send anything there",
            hint='give the port "fixed_ips", or the network a subnet',
        )
    by_cidr: dict[str, PortAddress] = {}
    for each in port.addresses:
        by_cidr.setdefault(each.cidr, each)
        if each.ipv6_ra_mode != each.ipv6_address_mode:
            raise UsageError(
                f'the subnet {each.cidr} of the server "{spec.name}" has the ipv6_ra_mode '
                f'"{each.ipv6_ra_mode or "none"}" and the ipv6_address_mode '
                f'"{each.ipv6_address_mode or "none"}": that needs a router outside of the cloud, '
                "which is not there",
                hint="give both the same value",
            )
    return [_subnet(port, each) for each in by_cidr.values()]


def _subnet(port: ServerPort, chosen: PortAddress) -> Subnet:
    network = ip_network(chosen.cidr)
    gateway = ip_address(chosen.gateway) if chosen.gateway else None
    server = ip_address(chosen.dhcp_server or _last_free(network, chosen))
    routes = tuple(
        (ip_network(to), ip_address(by))
        for to, by in chosen.host_routes
        # The segment has its own route to the metadata service.
        if ip_network(to) != ip_network(f"{METADATA_ADDRESS}/32")
    )
    return Subnet(
        network,
        server,
        gateway=gateway,
        routes=routes,
        name_servers=tuple(ip_address(each) for each in chosen.name_servers),
        domain=port.domain,
        dhcp=chosen.enable_dhcp,
        mtu=port.mtu,
        ipv6_mode=chosen.ipv6_ra_mode,
    )


def _last_free(network: Network, chosen: PortAddress) -> str:
    """Return an address near the end of a subnet without DHCP, for its services."""
    taken = {chosen.gateway, chosen.address}
    highest = int(network.broadcast_address) - 1
    return next(
        str(ip_address(each))
        # Three candidates, of which two at most are taken.
        for each in range(highest, highest - 3, -1)
        if str(ip_address(each)) not in taken
    )


def _reason(spec: ServerSpec, ports: list[Port]) -> str:
    named = (
        f'"{port.network_name}" ({made.addresses[0]})'
        for port, made in zip(spec.ports, ports, strict=True)
    )
    return f"the server is on {', '.join(named)}"


def _present(spec: RouterSpec, segments: Mapping[str, Segment]) -> dict[RouterInterface, Segment]:
    """Return a router's interfaces on running networks that have their subnet."""
    return {
        each: segments[each.network_id]
        for each in spec.interfaces
        if each.network_id in segments
        and segments[each.network_id].subnet_with(ip_address(each.address))
    }
