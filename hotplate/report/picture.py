"""The pictures of a report: a timeline, and the networks with their servers.

The timeline is one SVG: text and shapes, no script, colours from the page's style.  The networks
are lines with the servers hanging from theirs; a template draws them, so that only the positions
are computed here, in the picture's units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape

from hotplate.events.topology import Network, Topology
from hotplate.report.timeline import Lane, Span, Timeline, Tone
from hotplate.text import clean

WIDTH = 1180
GUTTER = 176
RIGHT = 16
ROW = 22
BAR = 14
FLAG_ROW = 15
# More rows in one lane are illegible.
MAX_ROWS = 10
# Above that, moments that would cover each other are drawn once.
MAX_MOMENTS = 400
# The approximate width of a letter of the picture, for the labels that fit into a bar.
LETTER = 6.4
BOLD = 7.0
MAX_TICKS = 12

MARGIN = 12
BETWEEN_NETWORKS = 44
BETWEEN_SERVERS = 190
BOX = 30
BOX_WITH_NOTE = 46
MAX_SERVERS = 24
MAX_ROUTERS = 12
#: Servers and networks beyond these limits are counted, not shown.
MAX_NETWORKS = 24
#: The number of letters of a server's name that fit into its box.
LETTERS = 24
#: The number of colours for networks, used in turn; see the style.
COLOURS = 4


def _esc(text: str) -> str:
    return escape(clean(text), quote=True)


def ticks(first: float, last: float) -> list[float]:
    """Return round times between two, about :data:`MAX_TICKS` of them at most."""
    length = max(last - first, 0.001)
    rough = length / MAX_TICKS
    power = 10 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    # An error of rounding must not lose the tick at an end.
    count = math.floor(last / step + 1e-9) - math.ceil(first / step - 1e-9) + 1
    begin = math.ceil(first / step - 1e-9)
    return [round((begin + number) * step, 6) for number in range(count)]


class Picture:
    """Draws a timeline.

    ::

        svg = Picture(timeline.build(events, server)).svg()
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        length = timeline.last - timeline.first
        self._first = timeline.first
        # With 2 % of room behind the last span.
        self._scale = (WIDTH - GUTTER - RIGHT) / (length * 1.02)
        self._under: list[str] = []
        self._over: list[str] = []

    def _x(self, seconds: float) -> float:
        return GUTTER + (seconds - self._first) * self._scale

    def svg(self) -> str:
        """Return the picture as an ``<svg>`` element."""
        flags = self._place_flags()
        rows = max((row for row, *_ in flags), default=0) + 1
        top = 6 + rows * FLAG_ROW
        y = float(top)
        for lane in self._timeline.lanes:
            y = self._lane(lane, y)
        bottom = y + 4
        middle = self._axis(top, bottom) + self._flags(flags, bottom)
        height = bottom + 26
        return (
            f'<svg class="timeline" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
            'aria-label="timeline of the run" xmlns="http://www.w3.org/2000/svg">'
            + "".join(self._under + middle + self._over)
            + "</svg>"
        )

    def _axis(self, top: float, bottom: float) -> list[str]:
        parts = []
        for tick in ticks(self._timeline.first, self._timeline.last):
            x = self._x(tick)
            parts.append(
                f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom:.0f}"/>'
                f'<text class="axis" x="{x:.1f}" y="{bottom + 16:.0f}">{tick:g} s</text>'
            )
        return parts

    def _place_flags(self) -> list[tuple[int, float, str, float]]:
        """Give each stage's name the first row with room for it: (row, left, name, time)."""
        ends: list[float] = []
        placed = []
        for name, seconds in self._timeline.flags:
            width = len(name) * BOLD
            left = self._x(seconds) + 3
            # At the right edge the name is on the left of its line.
            if left + width > WIDTH:
                left -= width + 6
            row = next((n for n, end in enumerate(ends) if end < left - 6), len(ends))
            ends[row:] = [left + width, *ends[row + 1 :]]
            placed.append((row, left, name, seconds))
        return placed

    def _flags(self, flags: list[tuple[int, float, str, float]], bottom: float) -> list[str]:
        """Return the stages, each with a line through all lanes."""
        parts = []
        for row, left, name, seconds in flags:
            x, y = self._x(seconds), 14 + row * FLAG_ROW
            parts.append(
                f'<line class="flag" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 9}" y2="{bottom:.0f}"/>'
                f'<text class="flag" x="{left:.1f}" y="{y}">{_esc(name)}'
                f"<title>{_esc(name)} after {seconds:.1f} s</title></text>"
            )
        return parts

    def _lane(self, lane: Lane, y: float) -> float:
        rows = self._rows(lane)
        height = max(1, len(rows)) * ROW
        self._under.append(
            f'<rect class="lane {_esc(lane.side)}" x="0" y="{y:.0f}" width="{WIDTH}" '
            f'height="{height}"/>'
            f'<text class="lane" x="{GUTTER - 10}" y="{y + 15:.0f}">{_esc(lane.title)}</text>'
        )
        for number, spans in enumerate(rows):
            for span in spans:
                self._span(span, y + number * ROW + (ROW - BAR) / 2)
        return y + height + 2

    def _rows(self, lane: Lane) -> list[list[Span]]:
        """Put bars that overlap below each other; moments all share the first row."""
        rows: list[list[Span]] = [[]]
        # Before the start of any span.
        ends = [-1e9]
        crowded = sum(span.end is None for span in lane.spans) > MAX_MOMENTS
        drawn: set[tuple[Tone, int]] = set()
        for span in sorted(lane.spans, key=lambda each: (each.end is None, each.start)):
            if span.end is None:
                place = (span.tone, round(self._x(span.start)))
                if not crowded or place not in drawn:
                    rows[0].append(span)
                drawn.add(place)
                continue
            row = next((n for n, end in enumerate(ends) if end <= span.start + 1e-6), None)
            if row is None:
                if len(rows) < MAX_ROWS:
                    rows.append([])
                    ends.append(-1e9)
                    row = len(rows) - 1
                else:
                    # No row is free: overlap the bar that ends first.
                    row = min(range(MAX_ROWS), key=lambda number: ends[number])
            ends[row] = max(ends[row], span.end)
            rows[row].append(span)
        return rows

    def _span(self, span: Span, y: float) -> None:
        x = self._x(span.start)
        when = f"{span.start:.2f} s"
        if span.end is not None:
            when = f"{span.start:.2f} to {span.end:.2f} s ({span.end - span.start:.2f} s)"
        title = f"<title>{_esc(span.detail)}\n{when}</title>"
        if span.end is None:
            # Bad moments differ in shape too, not in colour alone.
            extra = 3 if span.tone is Tone.BAD else 0
            width = 4 if span.tone is Tone.BAD else 2.4
            self._over.append(
                f'<rect class="moment {span.tone}" x="{x - width / 2:.1f}" y="{y - extra:.1f}" '
                f'width="{width}" height="{BAR + 2 * extra}">{title}</rect>'
            )
            return
        # At least three units wide, to be seen.
        width = max(3.0, self._x(span.end) - x)
        self._over.append(
            f'<rect class="bar {span.tone}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{BAR}" rx="2">{title}</rect>'
        )
        room = int((width - 8) / LETTER)
        label = span.label if len(span.label) <= room else span.label[: max(0, room - 1)] + "…"
        if room >= 4:
            self._over.append(
                f'<text class="bar {span.tone}" x="{x + 4:.1f}" y="{y + 11:.1f}">{_esc(label)}'
                f"{title}</text>"
            )


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
    """A server or a router.

    :param title: its whole name.
    :param note: the image of a server, where there are several; of a router, that it is one.
    """

    label: str
    title: str
    x: int
    width: int
    kind: str = "server"
    note: str = ""


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


def draw_networks(topology: Topology) -> Drawing | None:
    """Return the positions of the picture; None where no server is on a network."""
    identities = [*topology.networks][:MAX_NETWORKS]
    if not identities:
        return None
    networks = [topology.networks[each] for each in identities]
    servers = topology.servers[:MAX_SERVERS]
    routers = [each for each in topology.routers if each.interfaces.keys() & {*identities}]
    routers = routers[:MAX_ROUTERS]
    base = MARGIN + BETWEEN_NETWORKS * len(networks) + 12
    # The labels of networks are right of the last box, so that no line crosses them.
    label = max(len(f"{each.name} {each.cidr}") for each in networks)
    boxes = BETWEEN_SERVERS * (len(servers) + len(routers))
    width = 2 * MARGIN + boxes + math.ceil(BOLD * label)
    box = BOX_WITH_NOTE if topology.images or routers else BOX
    drawing = Drawing(width, base + box + MARGIN, base, box, more=_left_out(topology))
    for number, network in enumerate(networks):
        y = MARGIN + 16 + BETWEEN_NETWORKS * number
        drawing.lines.append(Line(f"{network.name} {network.cidr}", y, number % COLOURS))
    for number, (identity, name) in enumerate(servers):
        image = topology.images.get(identity, "")
        _add_box(drawing, number, name, _ports(networks, identity), note=_short(image))
    for number, router in enumerate(routers, len(servers)):
        ports = [
            (place, router.interfaces[each])
            for place, each in enumerate(identities)
            if each in router.interfaces
        ]
        _add_box(drawing, number, router.name, ports, kind="router", note="router")
    return drawing


def _left_out(topology: Topology) -> str:
    counts = (
        (len(topology.servers) - MAX_SERVERS, "servers"),
        (len(topology.networks) - MAX_NETWORKS, "networks"),
        (len(topology.routers) - MAX_ROUTERS, "routers"),
    )
    return " and ".join(f"{count} {what}" for count, what in counts if count > 0)


def _ports(networks: list[Network], identity: str) -> list[tuple[int, str]]:
    """Return for each of a server's ports the number of its network, and its addresses."""
    return [
        (number, " ".join(port.addresses))
        for number, network in enumerate(networks)
        for port in network.ports
        if port.server == identity
    ]


def _add_box(
    drawing: Drawing,
    number: int,
    name: str,
    ports: list[tuple[int, str]],
    *,
    kind: str = "server",
    note: str = "",
) -> None:
    left, width = MARGIN + BETWEEN_SERVERS * number, BETWEEN_SERVERS - 16
    drawing.boxes.append(Box(_short(name), name, left, width, kind, note))
    for place, (network, addresses) in enumerate(ports):
        line = drawing.lines[network]
        x = left + 14 + place * (width - 28) // max(1, len(ports))
        drawing.cables.append(PortLine(addresses, x, line.y, line.tone))


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
