"""What the cloud asks of whoever runs its servers."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class PortAddress:
    """One address of a port, and what DHCP says of the subnet that it is of.

    :param cidr: the subnet: ``10.0.0.0/24``; it and ``address`` are of the same IP version.
    :param gateway: "" when the subnet has none.
    :param host_routes: destination and next hop of each.
    :param dhcp_server: the address of the subnet's own services, which no port of a server has;
        "" when DHCP is off.
    """

    address: str
    subnet_id: str
    cidr: str
    gateway: str = ""
    host_routes: tuple[tuple[str, str], ...] = ()
    name_servers: tuple[str, ...] = ()
    enable_dhcp: bool = True
    dhcp_server: str = ""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PortAddress:
        """Return the inverse of :func:`dataclasses.asdict`, after JSON made lists of tuples."""
        lists = {
            "host_routes": tuple((str(to), str(by)) for to, by in value["host_routes"]),
            "name_servers": tuple(value["name_servers"]),
        }
        return cls(**{**value, **lists})


@dataclass(frozen=True)
class ServerPort:
    """A port of Neutron that is a server's.

    :param id: Neutron's id.
    :param mac: in lower case.
    :param addresses: the first is the one that DHCP hands out.
    :param names: the server's names on this network, its host name first, without the domain.
    :param domain: the search domain.
    :param mtu: bytes.
    """

    id: str
    network_id: str
    network_name: str
    mac: str
    addresses: tuple[PortAddress, ...] = ()
    names: tuple[str, ...] = ()
    domain: str = "novalocal"
    mtu: int = 1500

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ServerPort:
        """Return the inverse of :func:`dataclasses.asdict`, after JSON made lists of tuples."""
        lists = {
            "addresses": tuple(PortAddress.from_json(each) for each in value["addresses"]),
            "names": tuple(value["names"]),
        }
        return cls(**{**value, **lists})

    def shown(self) -> dict[str, object]:
        """Return it as an event has it; see :class:`~hotplate.events.kinds.ServerBoot`."""
        return {
            "network_id": self.network_id,
            "network": self.network_name,
            "cidr": self.addresses[0].cidr if self.addresses else "",
            "addresses": [each.address for each in self.addresses],
        }


@dataclass(frozen=True)
class ServerSpec:
    """One server as a template wants it.

    :param id: the Nova id, a UUID; the SMBIOS system UUID must be the same.
    :param user_data: the bytes the metadata service will serve, assembled by Heat.
    :param public_keys: key name -> OpenSSH public key line.
    :param metadata: Nova's key-value metadata of the server.
    :param config_drive: the template asked for a config drive.
    :param stack_name: the stack the server belongs to, "" when made outside of Heat.
    :param resource_name: the logical name in the template, for people.
    :param ports: its interfaces, in the order in which the guest sees them; none, and it is on the
        one network that each machine has of its own.
    """

    id: str
    name: str
    user_data: bytes = b""
    image: str = ""
    flavor: str = ""
    key_name: str = ""
    public_keys: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    config_drive: bool = False
    stack_name: str = ""
    resource_name: str = ""
    availability_zone: str = "nova"
    ports: tuple[ServerPort, ...] = ()

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ServerSpec:
        """Return the inverse of :meth:`to_json`."""
        typed = {
            "user_data": value["user_data"].encode("latin-1"),
            "ports": tuple(ServerPort.from_json(each) for each in value.get("ports", ())),
        }
        return cls(**{**value, **typed})

    def to_json(self) -> dict[str, object]:
        """Plain JSON types, to be kept over a restart."""
        return {
            **self.__dict__,
            "user_data": self.user_data.decode("latin-1"),
            "ports": [asdict(port) for port in self.ports],
        }


@dataclass(frozen=True)
class RouterInterface:
    """Where a router is on a network.

    :param mac: in lower case.
    :param address: the router's own, IPv4.
    """

    network_id: str
    mac: str
    address: str


@dataclass(frozen=True)
class RouterSpec:
    """A router between networks, as Neutron has it.

    :param routes: destination and next hop of each route that is not an interface's own.
    """

    id: str
    name: str
    interfaces: tuple[RouterInterface, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()


class GuestServices(Protocol):
    """What whoever runs a server needs of the cloud for its guest; the cloud is one."""

    def serve(
        self, server_id: str, *listeners: Mapping[int, socket.socket], vendor_data: str = ""
    ) -> AbstractContextManager[object]:
        """Answer the guest on listeners of its own, by port, until the result is closed.

        :param listeners: those of each of its interfaces.
        """

    def metadata_tree(self, server_id: str) -> Mapping[str, bytes]:
        """Path -> content of what the server's config drive holds."""

    def notify(self) -> None:
        """Let Heat look again: the server's status is another now."""


class Compute(Protocol):
    """Runs servers.  Each call returns at once; :meth:`status` tells how it went.

    Implementations must be thread-safe.
    """

    @property
    def networked(self) -> bool:
        """Whether its guests get the ports of their specs.

        Where not, each guest has the one address of a network of its own, and Nova gives no ports
        and says so.
        """

    def boot(self, spec: ServerSpec, services: GuestServices) -> None:
        """Start the server, whose guest gets the cloud's services; raises to refuse it."""

    def route(self, routers: Sequence[RouterSpec]) -> None:
        """Join the networks of servers by these routers, and by no others.

        Called where the servers are networked, each time that the routers change.
        """

    def delete(self, server_id: str) -> None:
        """End the server and forget it."""

    def stop(self, server_id: str) -> None:
        """Stop the server, so that :meth:`start` can go on with its disk."""

    def start(self, server_id: str) -> None:
        """Start a stopped server."""

    def replug(self, spec: ServerSpec, services: GuestServices) -> None:
        """Give a server the ports of ``spec`` in the place of those that it has.

        Called where the servers are networked, for one that is ``SHUTOFF`` or ``ACTIVE``, and for
        one that is ``PAUSED`` when none is taken away.  Returns when the guest has let go of what
        is taken away; raises to refuse it.
        """

    def suspend(self, server_id: str) -> None:
        """Freeze the server."""

    def resume(self, server_id: str) -> None:
        """Go on with a suspended server."""

    def pause(self, server_id: str) -> None:
        """Stop the server's processors; its memory stays where it is."""

    def unpause(self, server_id: str) -> None:
        """Let the server's processors run on."""

    def reboot(self, server_id: str) -> None:
        """Let the server's system shut down, and start the server again."""

    def hard_reboot(self, server_id: str) -> None:
        """Cut the server's power, whatever its state, and start it again."""

    def console(self, server_id: str) -> str:
        """Return what the server has written to its console, as far as it is kept."""

    def status(self, server_id: str) -> tuple[str, str]:
        """Nova's word for the state and the reason for people.

        The words are ``BUILD``, ``ACTIVE``, ``REBOOT``, ``HARD_REBOOT``, ``PAUSED``,
        ``SUSPENDED``, ``SHUTOFF`` and ``ERROR``.
        """
