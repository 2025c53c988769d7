"""Who follows a server through the stages, event by event, each deployment on its own."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from hotplate.events import classify
from hotplate.events.log import Event, EventLog
from hotplate.verdict.stages import ORDER, PER_DEPLOYMENT, STAGES, Mark, Stage, first_missing


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
        return first_missing(set(self.marks), PER_DEPLOYMENT)

    def named(self, stack: str, resource: str) -> bool:
        """True when this is the deployment that a signal or a stack event names."""
        if self.resource:
            return self.resource == resource and (
                not stack or not self.stack or stack == self.stack
            )
        # Heat names a deployment's config <stack>-<resource>-<12 characters> unless told otherwise.
        tail = re.compile(re.escape(resource) + r"-[a-z0-9]{12}$")
        return self.name == resource or bool(tail.search(self.name))


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
        if not classify.concerns(event, self.server):
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
        mark = Mark(stage, event.at, event.wall, classify.describe(event), deployment=track.label)
        track.marks[stage] = mark
        self._mark(mark, fresh)

    def _see_deployments(self, event: Event, fresh: list[Mark]) -> None:
        if found := classify.marker(event):
            self._see_marker(found, event, fresh)
        elif classify.is_poll(event):
            if classify.answered(event):
                for each in classify.deployment_ids(event) or ():
                    self._advance(self._by_id(each), Stage.DEPLOYMENT_DELIVERED, event, fresh)
        elif classify.is_signal(event):
            if not self._for_another(event):
                self._advance(self._by_signal(event), Stage.SIGNAL_RECEIVED, event, fresh)
        elif classify.is_deployment_resource(event):
            self._see_resource(event, fresh)
        elif event.source == "stack":
            if event.detail.get("type") != "OS::Heat::Stack":
                self._others.add(classify.resource_of(event))
            done = event.detail.get("status") in ("COMPLETE", "FAILED")
            if classify.is_wait_condition(event) and done and Stage.SIGNAL_RECEIVED in self._marks:
                evidence = classify.describe(event)
                self._mark(Mark(Stage.SIGNAL_ACCEPTED, event.at, event.wall, evidence), fresh)

    def _for_another(self, event: Event) -> bool:
        """True for the signal of a wait condition or of anything else that is no deployment."""
        named = classify.resource_of(event)
        return "/waitcondition/" in classify.path(event) or named in self._others

    def _see_marker(self, found: classify.Marker, event: Event, fresh: list[Mark]) -> None:
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
        stack, resource = classify.resource_of(event)
        state = event.detail.get("status")
        if classify.is_signal_taken(event):
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
        stack, resource = classify.resource_of(event)
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
                return first_missing(set(self._marks), self.expected)
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
                if not any(track.named(*classify.resource_of(event)) for track in self.deployments)
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
