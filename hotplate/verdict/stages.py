"""The way of a deployment, from power-on to an accepted signal, as a table; and who follows it.

Each stage is proved from either end: by a request that the harness served (the primary proof) or
by a line on the guest's console.  A later stage proves the earlier ones, because an image need not
write anything on its console.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from hotplate.events import Event, EventLog
from hotplate.verdict import readings


class Stage(StrEnum):
    """The stages in their order; the value is what people read."""

    BOOTED = "booted"
    NETWORK_UP = "network up"
    METADATA_SERVED = "metadata served"
    AGENT_POLLED = "agent polled"
    DEPLOYMENT_DELIVERED = "deployment delivered"
    HOOK_STARTED = "hook started"
    HOOK_FINISHED = "hook finished"
    SIGNAL_RECEIVED = "signal received"
    SIGNAL_ACCEPTED = "signal accepted"


ORDER: tuple[Stage, ...] = tuple(Stage)
# From this stage on, each deployment has its own progress.
PER_DEPLOYMENT = ORDER[ORDER.index(Stage.DEPLOYMENT_DELIVERED) :]

# Lines that only a running init of the image writes; an initramfs and GRUB write some like them.
_USERSPACE = re.compile(
    r"Welcome to (?!GRUB|.*[Ii]nitramfs).*!|login: ?$|Cloud-init v\. |"
    r"Reached target .*(?:[Mm]ulti-[Uu]ser|[Gg]raphical|[Cc]loud-|[Ll]ogin)"
)
# cloud-init's table of network devices, a device that is up and has an IPv4 address.
_ADDRESS = re.compile(r"ci-info: \| +(?!lo\b)\S+ +\| +True +\| +\d+\.\d+\.\d+\.\d+")
_CONFIG_DRIVE = re.compile(r"Datasource DataSourceConfigDrive|DataSourceConfigDrive \[net=")


@dataclass(frozen=True)
class StageRow:
    """One row of the stage table.

    :param proves: returns what proves the stage in an event, or "".
    :param look: what a person looks at when the stage is not reached.
    """

    stage: Stage
    proves: Callable[[Event], str]
    look: str


def _booted(event: Event) -> str:
    text = readings.console_text(event)
    if text and _USERSPACE.search(text):
        return text.strip()
    return ""


def _network_up(event: Event) -> str:
    if readings.is_request(event) or event.kind in ("connect", "refused"):
        return "the guest reached the harness"
    text = readings.console_text(event)
    if text and _ADDRESS.search(text):
        return text.strip()
    return ""


def _metadata_served(event: Event) -> str:
    if readings.is_metadata_fetch(event) and readings.answered(event):
        return readings.describe(event)
    text = readings.console_text(event)
    if text and _CONFIG_DRIVE.search(text):
        return text.strip()
    return ""


def _agent_polled(event: Event) -> str:
    return readings.describe(event) if readings.is_poll(event) else ""


def _marked(*words: str) -> Callable[[Event], str]:
    def proves(event: Event) -> str:
        found = readings.marker(event)
        return readings.describe(event) if found and found.event in words else ""

    return proves


def _delivered(event: Event) -> str:
    if readings.is_poll(event) and readings.answered(event) and readings.deployment_ids(event):
        return readings.describe(event)
    return _marked("received")(event)


def _signal_received(event: Event) -> str:
    return readings.describe(event) if readings.is_signal(event) else ""


def _signal_accepted(event: Event) -> str:
    if readings.is_deployment_resource(event) and event.detail.get("status") in (
        "COMPLETE",
        "FAILED",
    ):
        return readings.describe(event)
    return ""


STAGES: tuple[StageRow, ...] = (
    StageRow(
        Stage.BOOTED,
        _booted,
        "the end of the console and the screenshot; boot the image by hand with qemu.sh",
    ),
    StageRow(
        Stage.NETWORK_UP,
        _network_up,
        "the guest's network renderer (systemd-networkd, ifupdown) and its DHCP client",
    ),
    StageRow(
        Stage.METADATA_SERVED,
        _metadata_served,
        "cloud-init's datasource: /etc/cloud/cloud.cfg.d, ds-identify, /var/log/cloud-init.log",
    ),
    StageRow(
        Stage.AGENT_POLLED,
        _agent_polled,
        "the agent in the guest: systemctl status os-collect-config; "
        "journalctl -u os-collect-config",
    ),
    StageRow(
        Stage.DEPLOYMENT_DELIVERED,
        _delivered,
        "the answers to the agent's polls in requests.jsonl, and the stack's events",
    ),
    StageRow(
        Stage.HOOK_STARTED,
        _marked("started"),
        "the runner in the guest: journalctl -u os-collect-config; ls -l "
        "/usr/libexec/heat-config/hooks",
    ),
    StageRow(
        Stage.HOOK_FINISHED,
        _marked("finished"),
        "what the hook is doing in the guest: heat-config status; ps axf",
    ),
    StageRow(
        Stage.SIGNAL_RECEIVED,
        _signal_received,
        "the notifier in the guest: journalctl -u os-collect-config | grep heat-config-notify",
    ),
    StageRow(
        Stage.SIGNAL_ACCEPTED,
        _signal_accepted,
        "the answer to the signal in requests.jsonl, and Heat's log",
    ),
)
ROWS: dict[Stage, StageRow] = {row.stage: row for row in STAGES}


@dataclass(frozen=True)
class Mark:
    """A stage that was reached.

    :param at: seconds on the monotonic clock.
    :param evidence: what proved it.
    :param implied: True when a later stage proved it.
    """

    stage: Stage
    at: float
    wall: float
    evidence: str
    implied: bool = False
    deployment: str = ""


@dataclass
class DeploymentTrack:
    """How far one deployment came on one server.

    :param id: the id of its config as the guest knows it, "" while unknown.
    :param resource: the stack's resource, "" while unknown.
    :param rejected: why the runner did not start a hook for it, "" when it did.
    """

    id: str = ""
    name: str = ""
    group: str = ""
    stack: str = ""
    resource: str = ""
    rejected: str = ""
    status: int | None = None
    marks: dict[Stage, Mark] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.resource or self.name or self.id

    def missing(self) -> Stage | None:
        """Return the first stage that this deployment did not reach, None when it reached all."""
        if self.rejected:
            return Stage.HOOK_STARTED
        return _first_missing(set(self.marks), PER_DEPLOYMENT)

    def named(self, stack: str, resource: str) -> bool:
        """True when this is the deployment that a signal or a stack event names."""
        if self.resource:
            return self.resource == resource and (
                not stack or not self.stack or stack == self.stack
            )
        # Heat names a deployment's config <stack>-<resource>-<12 characters> unless told otherwise.
        tail = re.compile(re.escape(resource) + r"-[a-z0-9]{12}$")
        return self.name == resource or bool(tail.search(self.name))


def _first_missing(reached: set[Stage], order: tuple[Stage, ...]) -> Stage | None:
    missing: Stage | None = None
    for stage in reversed(order):
        if stage in reached:
            break
        missing = stage
    return missing


def _finished_at(track: DeploymentTrack) -> float:
    mark = track.marks.get(Stage.HOOK_FINISHED)
    return mark.at if mark else 0.0


class StageTracker:
    """Follows one server through the stages while the events come in.

    ::

        tracker = StageTracker(events, server=spec.id, on_reached=progress.reached)
        ...
        tracker.missing()           # Stage.AGENT_POLLED
        tracker.close()

    :param server: the Nova id of the server to follow.
    :param until: the last stage this run is expected to reach (a template without deployments
        ends at ``Stage.METADATA_SERVED``).
    :param on_reached: called once a stage with its :class:`Mark`, in the emitting thread.
    """

    def __init__(
        self,
        events: EventLog,
        server: str,
        *,
        until: Stage = Stage.SIGNAL_ACCEPTED,
        on_reached: Callable[[Mark], None] | None = None,
    ) -> None:
        self.server = server
        self.until = until
        self.started: float | None = None
        self.deployments: list[DeploymentTrack] = []
        self.pending: dict[str, Event] = {}
        self._marks: dict[Stage, Mark] = {}
        self._others: set[tuple[str, str]] = set()
        self._on_reached = on_reached
        self._lock = threading.RLock()
        # Subscribe before reading what is there: an event may be seen twice, which changes
        # nothing, but none is missed.
        self._unsubscribe = events.subscribe(self.see)
        for event in events:
            self.see(event)

    def close(self) -> None:
        """Stop following."""
        self._unsubscribe()

    @property
    def expected(self) -> tuple[Stage, ...]:
        """The stages this run is expected to reach."""
        return ORDER[: ORDER.index(self.until) + 1]

    def see(self, event: Event) -> None:
        """Take one event into account."""
        if not readings.concerns(event, self.server):
            return
        fresh: list[Mark] = []
        with self._lock:
            if event.source == "machine" and event.kind == "power-on" and self.started is None:
                self.started = event.at
            self._see_deployments(event, fresh)
            for row in STAGES:
                if row.stage in self._marks or row.stage == Stage.SIGNAL_ACCEPTED:
                    continue
                if evidence := row.proves(event):
                    self._mark(Mark(row.stage, event.at, event.wall, evidence), fresh)
        if self._on_reached:
            for mark in fresh:
                self._on_reached(mark)

    def _mark(self, mark: Mark, fresh: list[Mark]) -> None:
        if mark.stage not in self._marks:
            self._marks[mark.stage] = mark
            fresh.append(mark)

    def _advance(
        self, track: DeploymentTrack, stage: Stage, event: Event, fresh: list[Mark]
    ) -> None:
        if stage in track.marks:
            return
        mark = Mark(stage, event.at, event.wall, readings.describe(event), deployment=track.label)
        track.marks[stage] = mark
        self._mark(mark, fresh)

    def _see_deployments(self, event: Event, fresh: list[Mark]) -> None:
        if found := readings.marker(event):
            self._see_marker(found, event, fresh)
        elif readings.is_poll(event):
            if readings.answered(event):
                for each in readings.deployment_ids(event) or ():
                    self._advance(self._by_id(each), Stage.DEPLOYMENT_DELIVERED, event, fresh)
        elif readings.is_signal(event):
            if not self._for_another(event):
                self._advance(self._by_signal(event), Stage.SIGNAL_RECEIVED, event, fresh)
        elif readings.is_deployment_resource(event):
            self._see_resource(event, fresh)
        elif event.source == "stack":
            if event.detail.get("type") != "OS::Heat::Stack":
                self._others.add(readings.resource_of(event))
            done = event.detail.get("status") in ("COMPLETE", "FAILED")
            if readings.is_wait_condition(event) and done and Stage.SIGNAL_RECEIVED in self._marks:
                evidence = readings.describe(event)
                self._mark(Mark(Stage.SIGNAL_ACCEPTED, event.at, event.wall, evidence), fresh)

    def _for_another(self, event: Event) -> bool:
        """True for the signal of a wait condition or of anything else that is no deployment."""
        named = readings.resource_of(event)
        return "/waitcondition/" in readings.path(event) or named in self._others

    def _see_marker(self, found: readings.Marker, event: Event, fresh: list[Mark]) -> None:
        track = self._by_id(found.id)
        track.name, track.group = found.name or track.name, found.group or track.group
        if found.event == "rejected":
            self._advance(track, Stage.DEPLOYMENT_DELIVERED, event, fresh)
            track.rejected = found.reason or "the runner gave no reason"
        elif found.event == "received":
            self._advance(track, Stage.DEPLOYMENT_DELIVERED, event, fresh)
        elif found.event == "started":
            self._advance(track, Stage.HOOK_STARTED, event, fresh)
        elif found.event == "finished":
            track.status = found.status
            self._advance(track, Stage.HOOK_FINISHED, event, fresh)
        elif found.event == "signalled":
            self._advance(track, Stage.SIGNAL_RECEIVED, event, fresh)

    def _see_resource(self, event: Event, fresh: list[Mark]) -> None:
        stack, resource = readings.resource_of(event)
        state = event.detail.get("status")
        if readings.is_signal_taken(event):
            self._accept(stack, resource, event, fresh)
        elif state == "IN_PROGRESS" and event.detail.get("action") in ("CREATE", "UPDATE"):
            self.pending[resource] = event
        elif state in ("COMPLETE", "FAILED"):
            self.pending.pop(resource, None)
            self._accept(stack, resource, event, fresh)

    def _accept(self, stack: str, resource: str, event: Event, fresh: list[Mark]) -> None:
        """Heat took a signal, or the resource came to its end."""
        # Without a signal the resource ended otherwise, by a timeout for example.
        sent = [
            each
            for each in self.deployments
            if Stage.SIGNAL_RECEIVED in each.marks and Stage.SIGNAL_ACCEPTED not in each.marks
        ]
        named = [each for each in sent if each.named(stack, resource)]
        for track in named or [each for each in sent if not each.resource][:1]:
            track.stack, track.resource = stack or track.stack, resource
            self._advance(track, Stage.SIGNAL_ACCEPTED, event, fresh)

    def _by_id(self, identity: str) -> DeploymentTrack:
        for track in self.deployments:
            if track.id == identity:
                return track
        track = DeploymentTrack(id=identity)
        self.deployments.append(track)
        return track

    def _by_signal(self, event: Event) -> DeploymentTrack:
        """Return the deployment that a signal is of."""
        stack, resource = readings.resource_of(event)
        identity = str(event.detail.get("deployment", ""))
        waiting = [each for each in self.deployments if Stage.SIGNAL_RECEIVED not in each.marks]
        tried = [each for each in self.deployments if Stage.SIGNAL_ACCEPTED not in each.marks]
        # A deployment may be named after its config only.  The runner signals right after a hook's
        # end, so the one that finished last is meant.
        nameless = sorted(
            (each for each in waiting if not each.resource), key=_finished_at, reverse=True
        )

        def named(tracks: list[DeploymentTrack]) -> list[DeploymentTrack]:
            return [
                each
                for each in tracks
                if (identity and each.id == identity) or (resource and each.named(stack, resource))
            ]

        # After an update one resource has had several deployments: those that wait come first.
        meant = [*named(waiting), *named(tried), *nameless, *named(self.deployments)]
        if not meant:
            meant = [DeploymentTrack(id=identity)]
            self.deployments += meant
        track = meant[0]
        track.stack, track.resource = stack or track.stack, resource or track.resource
        return track

    def marks(self) -> list[Mark]:
        """Return the stages that were reached, in order, with those that a later one proves."""
        with self._lock:
            result: list[Mark] = []
            later: Mark | None = None
            blocked = self.missing()
            for stage in reversed(self.expected):
                mark = self._marks.get(stage)
                if mark is None and later and stage != blocked:
                    mark = Mark(
                        stage,
                        later.at,
                        later.wall,
                        f"implied by: {later.stage}",
                        implied=True,
                        deployment=later.deployment,
                    )
                if mark is not None:
                    result.append(mark)
                    if later is None or not mark.implied:
                        later = mark
            return result[::-1]

    def reached(self, stage: Stage) -> bool:
        """True when the stage was reached, itself or by a later one."""
        return any(mark.stage == stage for mark in self.marks())

    def missing(self) -> Stage | None:
        """Return the first stage that was not reached, None when all were.

        With several deployments it is the earliest stage at which one of them stands.
        """
        with self._lock:
            if self.until not in PER_DEPLOYMENT or not self.deployments:
                return _first_missing(set(self._marks), self.expected)
            wanted = [stage for stage in self.expected if stage in PER_DEPLOYMENT]
            stuck = [
                stage
                for stage in (track.missing() for track in self.deployments)
                if stage in wanted
            ]
            if self.undelivered():
                stuck.append(Stage.DEPLOYMENT_DELIVERED)
            return min(stuck, key=ORDER.index) if stuck else None

    def stuck(self) -> DeploymentTrack | None:
        """Return the deployment that stands at :meth:`missing`, None when it is none of them."""
        with self._lock:
            stage = self.missing()
            if stage is None:
                return None
            return next((each for each in self.deployments if each.missing() == stage), None)

    def undelivered(self) -> list[str]:
        """Return the deployments that Heat waits for and that this server never showed."""
        with self._lock:
            unmatched = [
                resource
                for resource, event in self.pending.items()
                if not any(track.named(*readings.resource_of(event)) for track in self.deployments)
            ]
            # Those that are on their way under a name that does not tell the resource.
            unassigned = [
                track
                for track in self.deployments
                if not track.resource
                and Stage.SIGNAL_ACCEPTED not in track.marks
                and not any(track.named("", resource) for resource in self.pending)
            ]
            return unmatched[len(unassigned) :]
