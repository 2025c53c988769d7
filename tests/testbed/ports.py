"""Servers with ports, made by hand."""

from __future__ import annotations

import uuid
from typing import Any

from hotplate.cloud.nova.compute import (
    PortAddress,
    RouterInterface,
    RouterSpec,
    ServerPort,
    ServerSpec,
)

NAMES = {0: "private", 1: "backend"}


def port(number: int, *, network: int = 0, **options: Any) -> ServerPort:
    """Return a port with the address 10.0.NETWORK.NUMBER."""
    base = f"10.0.{network}"
    address = PortAddress(
        f"{base}.{number}",
        f"subnet-{network}",
        f"{base}.0/24",
        gateway=f"{base}.1",
        dhcp_server=f"{base}.2",
    )
    given = {"mac": f"fa:16:3e:00:{network:02x}:{number:02x}", "addresses": (address,), **options}
    return ServerPort(
        id=f"port-{network}-{number}",
        network_id=f"network-{network}",
        network_name=NAMES.get(network, f"network-{network}"),
        **given,
    )


def spec(name: str, *ports: ServerPort) -> ServerSpec:
    """Return a server of that name; its ports have the same name."""
    return ServerSpec(id=str(uuid.uuid5(uuid.NAMESPACE_DNS, name)), name=name, ports=ports)


def router(
    *networks: int,
    name: str = "router",
    number: int = 1,
    routes: tuple[tuple[str, str], ...] = (),
) -> RouterSpec:
    """Return a router with the address 10.0.NETWORK.NUMBER on each of these networks."""
    interfaces = tuple(
        RouterInterface(
            f"network-{each}", f"fa:16:3e:01:{each:02x}:{number:02x}", f"10.0.{each}.{number}"
        )
        for each in networks
    )
    return RouterSpec(name, name, interfaces, routes)
