"""The routers between a testbed's networks: each runs while one of its networks does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

from hotplate.cloud.nova.compute import RouterInterface, RouterSpec
from hotplate.errors import MachineLostError
from hotplate.network.router import Router
from hotplate.network.segment import Segment

Segments = Mapping[str, Segment]
"""The running networks, by Neutron's id."""


@dataclass
class _RunningRouter:
    """A running router.

    :param attached: its interfaces, each with its segment and its number.
    """

    router: Router
    attached: dict[RouterInterface, tuple[Segment, int]] = field(default_factory=dict)


class RunningRouters:
    """The routers of one testbed. Not thread-safe: the caller serialises calls.

    :param on_loss: called with the error, in a thread of its own, when a router ends by itself.
    :ivar wanted: the routers as Neutron has them.
    """

    def __init__(self, *, on_loss: Callable[[MachineLostError], None]) -> None:
        self._on_loss = on_loss
        self.wanted: tuple[RouterSpec, ...] = ()
        self._running: dict[str, _RunningRouter] = {}

    def keep_up(self, segments: Segments) -> None:
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
            if present.get(interface) is not segment:
                running.router.detach(number)
                del running.attached[interface]
        for interface, segment in present.items():
            if interface not in running.attached:
                number = running.router.attach(
                    segment, mac=interface.mac, address=IPv4Address(interface.address)
                )
                running.attached[interface] = (segment, number)
        networks = [
            subnet.network
            for interface, segment in present.items()
            if (subnet := segment.subnet_with(IPv4Address(interface.address)))
        ]
        running.router.set_routes(
            (IPv4Network(to), IPv4Address(by))
            for to, by in spec.routes
            if any(IPv4Address(by) in network for network in networks)
        )

    def _start(self, spec: RouterSpec) -> _RunningRouter:
        router = Router(spec.name, on_loss=self._on_loss)
        router.__enter__()
        running = self._running[spec.id] = _RunningRouter(router)
        return running


def _present(spec: RouterSpec, segments: Segments) -> dict[RouterInterface, Segment]:
    """Return a router's interfaces on running networks that have their subnet."""
    return {
        each: segments[each.network_id]
        for each in spec.interfaces
        if each.network_id in segments
        and segments[each.network_id].subnet_with(IPv4Address(each.address))
    }
