"""A run as lanes of spans from both ends: the guest's console, and the requests served to it.

The model of the report's picture; times are seconds from power-on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hotplate.events import classify, console_patterns
from hotplate.events.event import Event
from hotplate.events.kinds import LinkChange, LinkPart, LinkShape, ServiceRequest, StackResource
from hotplate.events.log import EventLog
from hotplate.verdict.tracker import StageTracker


class Tone(StrEnum):
    """The appearance of a span."""

    GUEST = "guest"
    SERVED = "served"
    GOOD = "good"
    BAD = "bad"
    PLAIN = "plain"


@dataclass
class Span:
    """A period of time, or a moment.

    :param end: None for a moment.
    :param label: is written where there is room for it.
    :param detail: a tooltip.
    """

    start: float
    end: float | None
    label: str
    tone: Tone
    detail: str = ""

    @property
    def stop(self) -> float:
        """The end in the picture; a moment ends where it starts."""
        return self.start if self.end is None else self.end


@dataclass
class Lane:
    """A row of the picture.

    :param side: ``guest`` or ``harness``: the source of its events.
    """

    title: str
    side: str
    spans: list[Span] = field(default_factory=list)


@dataclass(frozen=True)
class Timeline:
    """All lanes, the stages as flags, and the range of time they cover in seconds."""

    lanes: list[Lane]
    flags: list[tuple[str, float]]
    first: float
    last: float


# systemd's words: "[  OK  ] Started", "[FAILED] Failed to", "[DEPEND]", "[ TIME ]".
_UNIT = re.compile(r"^\W*(?P<state>OK|FAILED|DEPEND|TIME)\W+(?P<what>\w.*)$")
_CLOUD_STAGE = re.compile(r"Cloud-init v\. \S+ running '(?P<stage>[^']+)'")
_CLOUD_END = re.compile(r"Cloud-init v\. \S+ finished")
# GRUB, and systemd in an initrd, welcome in the same words.
_USERSPACE = re.compile(r"Welcome to (?!GRUB|.*[Ii]nitramfs).*!")
_BOOTED = re.compile(r"login: ?$|Reached target .*(?i:multi-user)")
_AGENT = re.compile(r"os-collect-config|os-refresh-config|dib-run-parts")

# cloud-init tries paths that a metadata service need not have.
NOT_FOUND = 404

TITLES = {
    "machine": ("machine", "guest"),
    "boot": ("firmware, kernel, init", "guest"),
    "units": ("systemd units", "guest"),
    "cloud-init": ("cloud-init", "guest"),
    "agent": ("agent", "guest"),
    "hooks": ("hooks", "guest"),
    "metadata": ("metadata requests", "harness"),
    "polls": ("polls", "harness"),
    "cfn": ("other cfn requests", "harness"),
    "heat": ("other heat requests", "harness"),
    "keystone": ("keystone requests", "harness"),
    "swift": ("other swift requests", "harness"),
    "zaqar": ("other zaqar requests", "harness"),
    "signals": ("signals", "harness"),
    "stack": ("stack", "harness"),
}


class _Builder:
    """Reads events once and opens and closes spans accordingly."""

    def __init__(self, start: float) -> None:
        self.start = start
        self.lanes: dict[str, list[Span]] = {name: [] for name in TITLES}
        self._open: dict[tuple[str, str], Span] = {}
        self.now = 0.0

    def moment(self, lane: str, label: str, tone: Tone, detail: str = "") -> None:
        self.lanes[lane].append(Span(self.now, None, label, tone, detail or label))

    def begin(self, lane: str, key: str, label: str, tone: Tone, detail: str = "") -> None:
        self.finish(lane, key)
        span = Span(self.now, None, label, tone, detail or label)
        self._open[(lane, key)] = span
        self.lanes[lane].append(span)

    def finish(self, lane: str, key: str, *, tone: Tone | None = None, detail: str = "") -> None:
        span = self._open.pop((lane, key), None)
        if span is not None:
            span.end = self.now
            span.tone = tone or span.tone
            span.detail = detail or span.detail

    def close(self) -> None:
        """Let spans without an end last to the end of the picture."""
        for span in self._open.values():
            span.end = self.now
            span.detail += " (not finished)"
        self._open.clear()

    # -- events ----------------------------------------------------------------------------------

    def see(self, event: Event) -> None:
        self.now = event.at - self.start
        text = classify.console_text(event)
        if text is not None:
            self._console(text)
        elif event.source == "machine":
            self._machine(event)
        elif event.source == "stack":
            self._stack(event)
        elif classify.is_request(event):
            self._request(event)
        elif event.kind == "refused":
            lane = "polls" if event.source == "cfn" else event.source
            self.moment(lane, "refused", Tone.BAD, f"{event.source}: connection refused")

    def _console(self, text: str) -> None:
        if marker := classify.marker_in(text):
            self._marker(marker)
            return
        if "Linux version" in text:
            self.begin("boot", "boot", "kernel, initrd", Tone.GUEST, text.strip())
        elif _USERSPACE.search(text):
            self.begin("boot", "boot", "init", Tone.GUEST, text.strip())
        elif _BOOTED.search(text):
            self.finish("boot", "boot")
        # Besides, not instead: a target that ends the boot is a unit as well.
        if unit := _UNIT.match(text):
            bad = unit["state"] != "OK"
            self.moment("units", unit["what"], Tone.BAD if bad else Tone.GUEST, text.strip())
        if stage := _CLOUD_STAGE.search(text):
            name = stage["stage"].removeprefix("modules:")
            self.begin("cloud-init", "stage", name, Tone.GUEST, text.strip())
        elif _CLOUD_END.search(text):
            self.finish("cloud-init", "stage")
        if _AGENT.search(text) and not unit:
            self.moment("agent", "agent", Tone.GUEST, text.strip())
        pattern = console_patterns.match(text)
        if pattern is not None and not unit:
            self.moment("units", pattern.name, Tone.BAD, f"{pattern.reason}: {text.strip()}")

    def _marker(self, marker: classify.Marker) -> None:
        label = f"{marker.group} {marker.name}"
        text = f"{marker.event}: {label}" + (f", status {marker.status}" if marker.status else "")
        if marker.event == "started":
            self.begin("hooks", marker.id, label, Tone.GUEST, text)
        elif marker.event in ("finished", "interrupted"):
            good = marker.event == "finished" and not marker.status
            self.finish("hooks", marker.id, tone=Tone.GOOD if good else Tone.BAD, detail=text)
        elif marker.event in ("rejected", "signal-failed"):
            self.moment("hooks", marker.event, Tone.BAD, f"{text} {marker.reason}".strip())
        else:
            self.moment("agent", marker.event, Tone.GUEST, text)

    def _machine(self, event: Event) -> None:
        text = classify.describe(event)
        if event.kind == "power-on":
            self.begin("machine", "power", "on", Tone.PLAIN, text)
            self.begin("boot", "boot", "firmware", Tone.PLAIN, "firmware and boot loader")
        elif event.kind == "exit":
            lost = classify.is_loss(event)
            self.finish("machine", "power", tone=Tone.BAD if lost else None, detail=text)
        elif (link := LinkChange.of(event)) and not link.up:
            self.begin("machine", "link", "link cut", Tone.BAD, text)
        elif link:
            self.finish("machine", "link")
        elif shape := LinkShape.of(event):
            self._state(
                "slow or lossy link", f"shape {shape.network}", text, shape.delay or shape.loss
            )
        elif part := LinkPart.of(event):
            key = f"part {part.other} {part.network}"
            self._state(f"parted from {part.other}", key, text, part.parted)
        else:
            bad = event.kind in ("panic", "reset", "disk-error")
            self.moment("machine", event.kind, Tone.BAD if bad else Tone.PLAIN, text)

    def _state(self, label: str, key: str, text: str, lasts: object) -> None:
        """End the current span of a link's state, and begin the next one."""
        self.finish("machine", key)
        if lasts:
            self.begin("machine", key, label, Tone.BAD, text)

    def _stack(self, event: Event) -> None:
        change = StackResource.of(event)
        if change is None:
            return
        key = f"{change.stack}/{change.resource}/{change.action}"
        text = classify.describe(event)
        if change.action == "SIGNAL":
            self.moment("stack", "signal", Tone.PLAIN, text)
        elif change.status == "IN_PROGRESS":
            self.begin("stack", key, f"{change.resource} {change.action}", Tone.PLAIN, text)
        elif change.status in ("COMPLETE", "FAILED"):
            good = change.status == "COMPLETE"
            self.finish("stack", key, tone=Tone.GOOD if good else Tone.BAD, detail=text)

    def _request(self, event: Event) -> None:
        if classify.is_signal(event):
            lane = "signals"
        elif classify.is_poll(event):
            lane = "polls"
        else:
            lane = event.source
        good = classify.answered(event)
        tone = Tone.BAD if not good else Tone.GOOD if lane == "signals" else Tone.SERVED
        if lane == "metadata" and classify.status(event) == NOT_FOUND:
            tone = Tone.PLAIN
        asked = ServiceRequest.of(event) or ServiceRequest()
        took = "" if asked.seconds is None else f", {asked.seconds:.3f} s"
        label = "" if asked.status is None else str(asked.status)
        self.moment(lane, label, tone, classify.describe(event) + took)


def _spans(events: Iterable[Event], start: float) -> dict[str, list[Span]]:
    """Return the spans of each lane in :data:`TITLES`."""
    builder = _Builder(start)
    for event in events:
        builder.see(event)
    builder.close()
    return builder.lanes


def build(events: Iterable[Event], server: str) -> Timeline:
    """Return the timeline of one server.

    :param server: the Nova id of the server; events of Heat's stacks belong to every one.
    """
    mine = [
        event for event in events if classify.concerns(event, server) or event.source == "stack"
    ]
    power = next((e.at for e in mine if e.source == "machine" and e.kind == "power-on"), None)
    start = power if power is not None else (mine[0].at if mine else 0.0)
    spans_of = _spans(mine, start)
    lanes = [
        Lane(title, side, spans_of[name])
        for name, (title, side) in TITLES.items()
        if spans_of[name]
    ]
    spans = [span for lane in lanes for span in lane.spans]
    # Events before the power-on have negative times.
    first = min([0.0, *(span.start for span in spans)])
    # A second at least, so that the picture has a scale.
    last = max([1.0, *(span.stop for span in spans)])
    return Timeline(lanes, _flags(mine, server, start), first, last)


def build_together(events: Iterable[Event], servers: Mapping[str, str]) -> Timeline:
    """Return the timeline of several servers: a band for each, from stage to stage.

    :param servers: their names by their Nova ids, in the order of the bands.
    """
    seen = [*events]
    powers = [e.at for e in seen if e.source == "machine" and e.kind == "power-on"]
    start = min(powers, default=seen[0].at if seen else 0.0)
    end = max((e.at for e in seen if e.server in servers), default=start) - start
    lanes = [
        Lane(name, "guest", _band([e for e in seen if classify.concerns(e, server)], server, start))
        for server, name in servers.items()
    ]
    return Timeline(lanes, [], 0.0, max(1.0, end))


def _band(events: list[Event], server: str, start: float) -> list[Span]:
    """Return a server's progress from power-on: a span up to each stage, and its hooks."""
    powers = [e.at for e in events if e.source == "machine" and e.kind == "power-on"]
    before = (powers[0] if powers else start) - start
    spans = []
    for stage, at in sorted(_flags(events, server, start), key=lambda flag: flag[1]):
        spans.append(Span(before, at, stage, Tone.GUEST, f"on its way to: {stage}"))
        before = at
    return [*spans, *(each for each in _spans(events, start)["hooks"] if each.end is not None)]


def _flags(events: list[Event], server: str, start: float) -> list[tuple[str, float]]:
    # With a log of its own: it is shown these events only.
    tracker = StageTracker(EventLog(), server)
    for event in events:
        tracker.see(event)
    return [(str(mark.stage), mark.at - start) for mark in tracker.marks() if not mark.implied]
