"""The interface between the cloud and the code that runs its servers."""

from __future__ import annotations

import contextlib
import email
import json
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol
from urllib.parse import unquote

from hotplate.events.kinds import UserDataParts

CFN_INIT_DATA = "cfn-init-data"
#: The part that Heat runs as a script, with user_data_format HEAT_CFNTOOLS.
CFN_USER_DATA = "cfn-userdata"
#: The collectors of os-collect-config that Heat can point at itself.
SOURCES = ("cfn", "heat", "request", "zaqar")

_HANDLE = re.compile(r"stacks/[^/\s\"']+/(?P<stack>[0-9a-f-]{36})/resources/(?P<name>[\w.-]+)")


@dataclass(frozen=True)
class PortAddress:
    """One address of a port, and the DHCP settings of its subnet.

    :param cidr: the subnet, such as ``10.0.0.0/24``; of the same IP version as ``address``.
    :param gateway: "" when the subnet has none.
    :param host_routes: pairs of destination and next hop.
    :param dhcp_server: the address of the subnet's own services, which is on no port of a server;
        "" when DHCP is off.
    :param ipv6_address_mode: Neutron's, "" when the subnet has none.
    :param ipv6_ra_mode: Neutron's, as well.
    """

    address: str
    subnet_id: str
    cidr: str
    gateway: str = ""
    host_routes: tuple[tuple[str, str], ...] = ()
    name_servers: tuple[str, ...] = ()
    enable_dhcp: bool = True
    dhcp_server: str = ""
    ipv6_address_mode: str = ""
    ipv6_ra_mode: str = ""

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> PortAddress:
        """Return the inverse of :func:`dataclasses.asdict`, after JSON made lists of tuples."""
        routes = tuple((to, by) for to, by in value["host_routes"])
        names = tuple(value["name_servers"])
        return cls(**{**value, "host_routes": routes, "name_servers": names})


@dataclass(frozen=True)
class ServerPort:
    """A Neutron port that belongs to a server.

    :param id: Neutron's id.
    :param mac: in lower case.
    :param addresses: DHCP hands out the first one.
    :param names: the server's names on this network, its host name first, without the domain.
    :param domain: the search domain.
    :param mtu: bytes.
    :param secured: Neutron's ``port_security_enabled``.
    """

    id: str
    network_id: str
    network_name: str
    mac: str
    addresses: tuple[PortAddress, ...] = ()
    names: tuple[str, ...] = ()
    domain: str = "novalocal"
    mtu: int = 1500
    secured: bool = True

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ServerPort:
        """Return the inverse of :func:`dataclasses.asdict`, after JSON made lists of tuples."""
        addresses = tuple(PortAddress.from_json(each) for each in value["addresses"])
        return cls(**{**value, "addresses": addresses, "names": tuple(value["names"])})

    def shown(self) -> dict[str, object]:
        """Return the port as events show it; see :class:`~hotplate.events.kinds.ServerBoot`."""
        return {
            "network_id": self.network_id,
            "network": self.network_name,
            "cidr": self.addresses[0].cidr if self.addresses else "",
            "addresses": [each.address for each in self.addresses],
        }


@dataclass(frozen=True)
class ServerSpec:
    """One server as a template describes it.

    :param id: the Nova id, a UUID; the SMBIOS system UUID must be the same.
    :param user_data: the bytes that the metadata service serves, assembled by Heat.
    :param public_keys: key name -> OpenSSH public key line.
    :param metadata: Nova's key-value metadata of the server.
    :param config_drive: True when the template asks for a config drive.
    :param stack_name: the stack that the server belongs to, "" when made outside of Heat.
    :param resource_name: the logical name in the template, for people.
    :param ports: its interfaces, in the order in which the guest sees them; without any, the server
        is on the one network that each machine has of its own.
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
            # latin-1 maps each byte to one character, and back.
            "user_data": value["user_data"].encode("latin-1"),
            "ports": tuple(ServerPort.from_json(each) for each in value.get("ports", ())),
        }
        return cls(**{**value, **typed})

    def to_json(self) -> dict[str, object]:
        """Return the spec as plain JSON types, to be stored across a restart."""
        return {
            **self.__dict__,
            "user_data": self.user_data.decode("latin-1"),
            "ports": [asdict(port) for port in self.ports],
        }


@dataclass(frozen=True)
class RouterInterface:
    """A router's interface on a network.

    :param mac: in lower case.
    :param address: the router's own IPv4 address.
    """

    network_id: str
    mac: str
    address: str


@dataclass(frozen=True)
class RouterSpec:
    """A router between networks, as Neutron describes it.

    :param routes: destination and next hop of each route beyond those of the interfaces.
    """

    id: str
    name: str
    interfaces: tuple[RouterInterface, ...] = ()
    routes: tuple[tuple[str, str], ...] = ()


class GuestServices(Protocol):
    """Services of the cloud for a server's guest; the cloud implements them."""

    def serve(
        self,
        server_id: str,
        *listeners: Mapping[int, socket.socket],
        vendor_data: str = "",
        isolated: bool = False,
    ) -> AbstractContextManager[object]:
        """Answer the guest on its own listeners, keyed by port, until the result is closed.

        :param listeners: one mapping for each of its interfaces.
        :param isolated: its machine has one link of its own, and none of its ports.
        """

    def metadata_tree(self, server_id: str) -> Mapping[str, bytes]:
        """Return the files of the server's config drive: path -> content."""

    def notify(self) -> None:
        """Wake up Heat, because the server's status has changed."""


class Compute(Protocol):
    """Runs servers.  Each call returns at once; :meth:`status` reports the outcome.

    Implementations must be thread-safe.
    """

    @property
    def networked(self) -> bool:
        """Return True when guests get the ports of their specs.

        Otherwise each guest has one address on a network of its own, and Nova gives no ports
        and says so.
        """

    def boot(self, spec: ServerSpec, services: GuestServices) -> None:
        """Start the server and give its guest the cloud's services; raise to refuse it."""

    def route(self, routers: Sequence[RouterSpec]) -> None:
        """Connect the networks of servers by these routers only.

        Called each time that the routers change, if the servers are networked.
        """

    def delete(self, server_id: str) -> None:
        """Stop the server and forget it."""

    def stop(self, server_id: str) -> None:
        """Stop the server; keep its disk for :meth:`start`."""

    def start(self, server_id: str) -> None:
        """Start a stopped server."""

    def replug(self, spec: ServerSpec, services: GuestServices) -> None:
        """Replace a server's ports by those of ``spec``.

        Called if the servers are networked, for a server that is ``SHUTOFF`` or ``ACTIVE``, and
        for a ``PAUSED`` one when no port is removed.  Returns when the guest has released the
        removed ports; raises to refuse.
        """

    def suspend(self, server_id: str) -> None:
        """Freeze the server."""

    def resume(self, server_id: str) -> None:
        """Resume a suspended server."""

    def pause(self, server_id: str) -> None:
        """Stop the server's processors; keep its memory."""

    def unpause(self, server_id: str) -> None:
        """Resume the server's processors."""

    def reboot(self, server_id: str) -> None:
        """Let the server's system shut down, and start the server again."""

    def hard_reboot(self, server_id: str) -> None:
        """Cut the server's power in any state, and start it again."""

    def console(self, server_id: str) -> str:
        """Return the console output of the server that is still kept."""

    def status(self, server_id: str) -> tuple[str, str]:
        """Return Nova's word for the state, and the reason for people.

        The words are ``BUILD``, ``ACTIVE``, ``REBOOT``, ``HARD_REBOOT``, ``PAUSED``,
        ``SUSPENDED``, ``SHUTOFF`` and ``ERROR``.
        """


def user_data_parts(data: bytes) -> UserDataParts:
    """Return the parts, collectors and wait condition handles of a server's user data.

    :param data: MIME multipart, as Heat makes it (``heat/engine/clients/os/nova.py``), with the
        part ``cfn-init-data``, whose JSON has the section ``os-collect-config``; anything else has
        no parts.
    """
    message = email.message_from_bytes(data)
    # walk() begins with the message itself.
    parts = list(message.walk())[1:] if message.is_multipart() else []
    texts = [_text(part) for part in parts if not part.is_multipart()] or [
        data.decode(errors="replace")
    ]
    init_data = [_text(part) for part in parts if part.get_filename() == CFN_INIT_DATA]
    scripts = [_text(part) for part in parts if part.get_filename() == CFN_USER_DATA]
    return UserDataParts(
        parts=[part.get_filename() or part.get_content_type() for part in parts],
        sources=_sources(init_data[0]) if init_data else [],
        handles=sorted({handle for text in texts for handle in _handles(text)}),
        not_a_script=any(text and not text.startswith("#!") for text in scripts) or None,
    )


def _text(part: Any) -> str:
    payload = part.get_payload(decode=True)
    return payload.decode(errors="replace") if isinstance(payload, bytes) else ""


def _sources(init_data: str) -> list[str]:
    """Return the collectors for which the data has a setting that is not empty."""
    # The part of that name may be anything: no JSON, or a list.
    with contextlib.suppress(ValueError, AttributeError):
        sections = json.loads(init_data).get("os-collect-config") or {}
        return [name for name in SOURCES if any((sections.get(name) or {}).values())]
    return []


def _handles(text: str) -> list[str]:
    """Return the wait condition handles whose URLs are in a text, as ``STACK-ID/NAME``."""
    # Heat quotes the ARN in a signed URL (``arn_url_path``).
    return [f"{handle['stack']}/{handle['name']}" for handle in _HANDLE.finditer(unquote(text))]
