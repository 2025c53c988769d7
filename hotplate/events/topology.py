"""The networks of a run, with the servers on them and their addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotplate.events.event import Event
from hotplate.events.kinds import BootImage, InterfaceChange, RouterChange, ServerBoot


@dataclass(frozen=True)
class Attachment:
    """A server's port on a network.

    :param server: the server's id.
    """

    server: str
    addresses: tuple[str, ...]


@dataclass
class Network:
    """A network with servers on it.

    :param cidrs: the subnets from which the servers have addresses.
    """

    name: str
    cidrs: list[str] = field(default_factory=list)
    ports: list[Attachment] = field(default_factory=list)

    @property
    def cidr(self) -> str:
        """Its subnets in one line."""
        return " ".join(self.cidrs)


@dataclass(frozen=True)
class TopologyRouter:
    """A router between networks.

    :param interfaces: its address on each network, by the network's id.
    """

    name: str
    interfaces: Mapping[str, str]


@dataclass
class Topology:
    """Networks by their ids, and servers (id and name), in the order of the servers' start.

    :param images: the image that each server boots, by the server's id, where there are several.
    """

    networks: dict[str, Network] = field(default_factory=dict)
    servers: list[tuple[str, str]] = field(default_factory=list)
    images: dict[str, str] = field(default_factory=dict)
    routers: list[TopologyRouter] = field(default_factory=list)

    def add(
        self, server: str, name: str, ports: Iterable[Mapping[str, object]], *, image: str = ""
    ) -> None:
        """Add a server.

        :param server: its id.
        :param ports: in the form of :class:`~hotplate.events.kinds.ServerBoot`.
        :param image: the name of its image, where there are several.
        """
        self.servers.append((server, name))
        if image:
            self.images[server] = image
        for port in ports:
            network = self.networks.setdefault(
                str(port["network_id"]), Network(str(port["network"]))
            )
            if (cidr := str(port["cidr"])) not in network.cidrs:
                network.cidrs.append(cidr)
            listed = port["addresses"]
            addresses = tuple(map(str, listed)) if isinstance(listed, (list, tuple)) else ()
            network.ports.append(Attachment(server, addresses))

    def __str__(self) -> str:
        """Return a line for each network with its servers; "" when no server is on a network."""
        names = {
            server: f"{name} ({image})" if (image := self.images.get(server)) else name
            for server, name in self.servers
        }
        return "\n".join(
            f"network {each.name} {each.cidr}: "
            + ", ".join(" ".join((names[port.server], *port.addresses)) for port in each.ports)
            for each in self.networks.values()
        )


def _router(fact: Mapping[str, Any]) -> TopologyRouter:
    interfaces = {str(each["network_id"]): str(each["address"]) for each in fact["interfaces"]}
    return TopologyRouter(str(fact["name"]), interfaces)


def of_events(events: Iterable[Event]) -> Topology:
    """Return the topology of the servers requested in a run."""
    # A rebuilt server is requested again.
    booted: dict[str, ServerBoot] = {}
    ports: dict[str, Sequence[Mapping[str, object]]] = {}
    images: dict[str, str] = {}
    routers: list[dict[str, Any]] = []
    for each in events:
        if boot := ServerBoot.of(each):
            booted[each.server], ports[each.server] = boot, boot.ports
        elif changed := InterfaceChange.of(each):
            ports[each.server] = changed.ports
        elif image := BootImage.of(each):
            images[each.server] = image.name
        elif routed := RouterChange.of(each):
            routers = routed.routers or []
    topology = Topology(routers=[_router(each) for each in routers])
    for server, boot in booted.items():
        topology.add(server, boot.name, ports[server], image=images.get(server, ""))
    return topology
