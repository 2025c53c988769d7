"""Addresses of the cloud's services, for guests and for clients on the host."""

from __future__ import annotations

from enum import Enum

#: The address at which guests reach the cloud: Nova's metadata address serves the rest as well.
GUEST_ADDRESS = "169.254.169.254"

#: The port of each service on :data:`GUEST_ADDRESS`.
PORTS: dict[int, str] = {
    80: "metadata",
    5000: "keystone",
    8000: "cfn",
    8004: "heat",
    8080: "swift",
    8888: "zaqar",
    9000: "zaqar-websocket",
}

#: Services for clients on the host only: they listen on loopback, and guests cannot reach them.
HOST_SERVICES = ("nova", "neutron", "glance")

#: All services.
SERVICES = (*PORTS.values(), *HOST_SERVICES)

REGION = "RegionOne"


class Side(Enum):
    """The side of a caller, which decides the URLs in its catalogue."""

    GUEST = "guest"
    HOST = "host"
    #: Heat itself: it connects over loopback (``internal``), and hands out guest URLs (``public``).
    ENGINE = "engine"


def guest_base(service: str) -> str:
    """Return the base URL of ``service`` for guests.

    >>> guest_base("cfn")
    'http://169.254.169.254:8000'
    """
    port = next(port for port, name in PORTS.items() if name == service)
    scheme = "ws" if service == "zaqar-websocket" else "http"
    return f"{scheme}://{GUEST_ADDRESS}:{port}" if port != 80 else f"{scheme}://{GUEST_ADDRESS}"
