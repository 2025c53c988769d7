"""The networks of a run as a picture: a line for each, with the servers hanging from theirs.

A template draws it; this module only computes the positions, in the picture's units.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hotplate.events.topology import Network, Topology

MARGIN = 12
BETWEEN_NETWORKS = 44
BETWEEN_SERVERS = 190
LEAST_WIDTH = 1180
BOX = 30
BOX_WITH_IMAGE = 46
MOST_SERVERS = 24
MOST_NETWORKS = 24
"""Servers and networks beyond these limits are counted, not shown."""
LETTERS = 24
"""The number of letters of a server's name that fit into its box."""
COLOURS = 4
"""The number of colours for networks, used in turn; see the style."""


@dataclass(frozen=True)
class Line:
    """A network: a line from left to right.

    :param tone: the number of its colour.
    """

    label: str
    y: int
    tone: int


@dataclass(frozen=True)
class PortLine:
    """The line between a server and its network."""

    label: str
    x: int
    top: int
    tone: int


@dataclass(frozen=True)
class Box:
    """A server; ``title`` is its whole name, ``image`` its image, where there are several."""

    label: str
    title: str
    x: int
    width: int
    image: str = ""


@dataclass
class Drawing:
    """The picture; ``more`` counts the omitted servers and networks, "" when none is."""

    width: int
    height: int
    base: int
    box: int
    lines: list[Line] = field(default_factory=list)
    cables: list[PortLine] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    more: str = ""


def draw(topology: Topology) -> Drawing | None:
    """Return the positions of the picture; None where no server is on a network."""
    networks = [*topology.networks.values()][:MOST_NETWORKS]
    if not networks:
        return None
    servers = topology.servers[:MOST_SERVERS]
    base = MARGIN + BETWEEN_NETWORKS * len(networks) + 12
    width = max(LEAST_WIDTH, 2 * MARGIN + BETWEEN_SERVERS * len(servers))
    box = BOX_WITH_IMAGE if topology.images else BOX
    drawing = Drawing(width, base + box + MARGIN, base, box, more=_left_out(topology))
    for number, network in enumerate(networks):
        _add_line(drawing, number, network)
    for number, (identity, name) in enumerate(servers):
        image = topology.images.get(identity, "")
        _add_server(drawing, number, name, _ports(networks, identity), image)
    return drawing


def _left_out(topology: Topology) -> str:
    counts = (
        (len(topology.servers) - MOST_SERVERS, "servers"),
        (len(topology.networks) - MOST_NETWORKS, "networks"),
    )
    return " and ".join(f"{count} {what}" for count, what in counts if count > 0)


def _add_line(drawing: Drawing, number: int, network: Network) -> None:
    y = MARGIN + 16 + BETWEEN_NETWORKS * number
    drawing.lines.append(Line(f"{network.name} {network.cidr}", y, number % COLOURS))


def _ports(networks: list[Network], identity: str) -> list[tuple[int, str]]:
    """Return for each of a server's ports the number of its network, and its addresses."""
    return [
        (number, " ".join(port.addresses))
        for number, network in enumerate(networks)
        for port in network.ports
        if port.server == identity
    ]


def _add_server(
    drawing: Drawing, number: int, name: str, ports: list[tuple[int, str]], image: str
) -> None:
    left, width = MARGIN + BETWEEN_SERVERS * number, BETWEEN_SERVERS - 16
    drawing.boxes.append(Box(_short(name), name, left, width, _short(image)))
    for place, (network, addresses) in enumerate(ports):
        line = drawing.lines[network]
        x = left + 14 + place * (width - 28) // max(1, len(ports))
        drawing.cables.append(PortLine(addresses, x, line.y, line.tone))


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
