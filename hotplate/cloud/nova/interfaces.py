"""A server's interfaces: the request for them, and their views.

Without ports of Neutron a server has one, on the network that each machine has of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hotplate.cloud.nova.compute import PortAddress, ServerPort

#: The network of every server without a port of Neutron, and the name of Neutron's default one.
NETWORK = "hotplate"

#: The address that a guest gets from the only DHCP server it can see.
GUEST_IP = "169.254.169.15"

#: The subnet of the network that each machine has of its own.
LINK = "169.254.169.0/24"


@dataclass(frozen=True)
class Wanted:
    """The interfaces that a request for a server asks for.

    :param networks: entries with ``uuid``, ``port`` or ``fixed_ip``; ``auto`` or ``none``.
    :param groups: security groups by name or id, for the ports that Nova makes.
    """

    server_id: str
    host_name: str
    networks: Sequence[dict[str, Any]] | str = "auto"
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Interface:
    """An interface as Nova shows it.

    :param floating: the floating addresses that point to it.
    :param groups: the names of its security groups.
    :param group_ids: the ids of these; none without Neutron.
    """

    port: ServerPort
    floating: tuple[str, ...] = ()
    groups: tuple[str, ...] = ("default",)
    status: str = "ACTIVE"
    group_ids: tuple[str, ...] = ()

    def addresses(self) -> list[dict[str, object]]:
        """Return the addresses as a server's view shows them."""
        mac = {"OS-EXT-IPS-MAC:mac_addr": self.port.mac}
        fixed = [each.address for each in self.port.addresses]
        return [
            {"version": 6 if ":" in each else 4, "addr": each, "OS-EXT-IPS:type": kind, **mac}
            for kind, those in (("fixed", fixed), ("floating", self.floating))
            for each in those
        ]

    def attachment(self, *, tagged: bool = False) -> dict[str, object]:
        """Return the interface as ``os-interface`` shows it.

        :param tagged: with the tag, of which there is none.
        """
        return {
            **({"tag": None} if tagged else {}),
            "port_id": self.port.id,
            "net_id": self.port.network_id,
            "mac_addr": self.port.mac,
            "port_state": self.status,
            "fixed_ips": [
                {"ip_address": each.address, "subnet_id": each.subnet_id}
                for each in self.port.addresses
            ],
        }


@dataclass(frozen=True)
class RequestedNetwork:
    """A network that was requested for a server without ports.

    :param port_id: the port that was requested there, "" when Nova should have made one.
    """

    network_id: str = NETWORK
    network_name: str = NETWORK
    port_id: str = ""


def own_link(server_id: str, requested: RequestedNetwork = RequestedNetwork()) -> Interface:
    """Return the interface of a server without ports: on the network of its own machine.

    :param requested: the requested network, whose name and ids the interface shows.
    """
    address = PortAddress(GUEST_IP, NETWORK, LINK)
    port = ServerPort(
        requested.port_id or server_id,
        requested.network_id,
        requested.network_name,
        mac_address(server_id),
        (address,),
    )
    return Interface(port)


def by_network(interfaces: Sequence[Interface]) -> dict[str, list[dict[str, object]]]:
    """Return the addresses, keyed by the name of the network."""
    shown: dict[str, list[dict[str, object]]] = {}
    for each in interfaces:
        shown.setdefault(each.port.network_name, []).extend(each.addresses())
    return shown


def group_names(interfaces: Sequence[Interface]) -> list[str]:
    """Return the names of the security groups of interfaces, each once."""
    return list(dict.fromkeys(name for each in interfaces for name in each.groups))


def host_name(name: str) -> str:
    """Return the host name that Nova's ``sanitize_hostname`` derives from a server's name.

    >>> host_name("My web_1")
    'my-web-1'
    """
    kept = "".join(c if c.isalnum() and c.isascii() else "-" if c in " _.-" else "" for c in name)
    return (kept.strip("-").lower() or "server")[:63]


#: Types of links that a guest makes of others (``network_data.json``).
MADE_BY_GUEST = ("bond", "vlan")


def physical_links(data: Mapping[str, Any]) -> list[str]:
    """Return the ids of those links of a ``network_data.json`` that are interfaces of a machine."""
    return [each["id"] for each in data["links"] if each["type"] not in MADE_BY_GUEST]


def mac_address(server_id: str) -> str:
    """Return the MAC address of a server: QEMU's prefix and bytes of the id's hash."""
    digest = hashlib.sha256(server_id.encode()).digest()
    return "52:54:00:" + ":".join(f"{byte:02x}" for byte in digest[:3])
