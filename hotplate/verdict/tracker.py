"""Follow a server through the stages, event by event, and each deployment on its own.

The due stages follow from events too (:mod:`hotplate.events.expected`): a server without
deployments boots, gets its metadata, and polls if it has an address to poll; a deployment
continues to its accepted signal, or to its hook's end where Heat wants no signal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

from hotplate.events import classify, expected
from hotplate.events.event import Event
from hotplate.events.expected import ExpectedDeployment
from hotplate.events.kinds import (
    GuestAnswer,
    NetworkAnswer,
    PowerOn,
    ServerBoot,
    StackResource,
    UserDataParts,
)
from hotplate.events.log import EventLog
from hotplate.verdict.boots import Boots
from hotplate.verdict.deployment_track import DeploymentTrack, WaitSignal, furthest
from hotplate.verdict.stages import (
    ASKED,
    BOOT,
    ORDER,
    PER_DEPLOYMENT,
    STAGES,
    Mark,
    Stage,
    booted,
    first_missing,
)

Track = DeploymentTrack | WaitSignal


class StageTracker:
    """Follows one server through the stages while the events come in.

    ::

        tracker = StageTracker(events, server=spec.id, on_reached=progress.reached)
        ...
        tracker.missing()           # Stage.AGENT_POLLED
        tracker.close()

    :param server: the Nova id of the server to follow.
    :param on_reached: called once a stage with its :class:`Mark`, in the emitting thread.
    :param checked: the guest's network is checked at the end of its boot, and the run is not done
        before the answer (:class:`~hotplate.events.kinds.NetworkAnswer`).
    :param asked: the guest is asked for the stages in :data:`~hotplate.verdict.stages.ASKED` after
        its boot (:class:`~hotplate.events.kinds.GuestAnswer`).
    :param unseen: the stages of a server that may be invisible where it runs, and so are not due;
        those that are seen, or proved by a later stage, count.
    """

    def __init__(
        self,
        events: EventLog,
        server: str,
        *,
        on_reached: Callable[[Mark], None] | None = None,
        checked: bool = False,
        asked: bool = False,
        unseen: frozenset[Stage] = frozenset(),
    ) -> None:
        self.server = server
        self.unseen = unseen
        # The traffic between a guest and its cloud is only hidden where the cloud is not ours.
        self.in_cloud = bool(unseen)
        self.name = ""
        self.started: float | None = None
        self.deployments: list[DeploymentTrack] = []
        self.waits: list[WaitSignal] = []
        self.boots = Boots()
        self.checked = checked
        self.asked = asked
        self.answers: dict[Stage, GuestAnswer] = {}
        self._network = NetworkAnswer()
        self._answered_in = 0
        self._from_drive = False
        self._seed = ""
        self._has_source = False
        self._conditions: dict[tuple[str, str], Event] = {}
        self._marks: dict[Stage, Mark] = {}
        self._of_waits: dict[Stage, Mark] = {}
        self._on_reached = on_reached
        self._lock = threading.RLock()
        # Subscribe before reading the existing events: an event may be seen twice, which changes
        # nothing, but none is missed.
        self._unsubscribe = events.subscribe(self.see)
        for event in events:
            self.see(event)

    def close(self) -> None:
        """Stop following."""
        self._unsubscribe()

    @property
    def exists(self) -> bool:
        """True when Heat asked for the server, or its machine was switched on."""
        return bool(self.name) or self.started is not None

    # -- what is due -----------------------------------------------------------------------------

    @property
    def expected(self) -> tuple[Stage, ...]:
        """The stages that are due, in order."""
        absent = self.absent
        return tuple(
            stage for stage in self.shown if stage not in self.unseen and stage not in absent
        )

    @property
    def absent(self) -> dict[Stage, str]:
        """The stages that the image has nothing for, or that nothing shows -> the reason."""
        with self._lock:
            return {
                stage: each.text
                for stage, each in self.answers.items()
                if each.reached is None and stage not in self._marks
            }

    @property
    def shown(self) -> tuple[Stage, ...]:
        """The stages that are due, including those not visible or not there, in order."""
        with self._lock:
            due = {*self._of_server(), *self.absent, *(ASKED if self.asked else ())}
            for track in self._tracks():
                due.update(track.due)
            return tuple(stage for stage in ORDER if stage in due)

    def _of_server(self) -> tuple[Stage, ...]:
        """Return the stages that it has to reach independent of deployments."""
        polls = self._has_source or any(each.due for each in self.deployments)
        absent = self.absent
        boot = tuple(stage for stage in BOOT if stage not in absent)
        return (*boot, Stage.AGENT_POLLED) if polls else boot

    def _tracks(self) -> list[Track]:
        return [*self.deployments, *self.waits]

    def missing(self) -> Stage | None:
        """Return the first due stage that was not reached, None when all were.

        With several deployments it is the missing stage of :meth:`decisive`.
        """
        with self._lock:
            return self.missing_before_answers() or self._missing_answer()

    def missing_before_answers(self) -> Stage | None:
        """Return the same as :meth:`missing`, without the stages that the guest is asked for."""
        with self._lock:
            if (stage := self._missing_of_server()) is not None:
                return stage
            track = self.decisive()
            stage = track.missing() if track is not None else None
            silent = self.network_answered and self._network.up is False
            return Stage.NETWORK_UP if stage is None and silent else stage

    def _missing_answer(self) -> Stage | None:
        due = ASKED if self.asked else ()
        absent = self.absent
        return next((each for each in due if each not in self._marks and each not in absent), None)

    def done(self) -> bool:
        """Return True when all due stages were reached, or asked for, and no change is imminent."""
        with self._lock:
            settled = not self.boots.unsettled and (self.network_answered or not self.checked)
            return settled and self.answered and self.missing_before_answers() is None

    @property
    def answered(self) -> bool:
        """True when the guest has been asked for all stages that it is asked for."""
        return not self.asked or self.answers.keys() >= set(ASKED)

    @property
    def network_answered(self) -> bool:
        """True when the check of the guest's network in this boot is finished, with any result."""
        return self._answered_in == self.boots.number

    def _missing_of_server(self) -> Stage | None:
        if self.boots.rebooting and not any(each.failed for each in self.deployments):
            return Stage.BOOTED
        due = self._of_server()
        # A stage of a deployment proves the stages before it.
        stage = first_missing(set(self._marks), (*due, *PER_DEPLOYMENT))
        if stage is not Stage.BOOTED and self._only_drive():
            stage = Stage.NETWORK_UP
        return stage if stage in due and stage not in self.unseen else None

    def _only_drive(self) -> bool:
        """Return True when only the read of a config drive, which needs no network, was seen.

        False where nothing can show the guest's network.
        """
        others = self._marks.keys() - {Stage.BOOTED, Stage.METADATA_SERVED}
        unseeable = self.network_answered and self._network.up is None
        return self._from_drive and not others and not unseeable and not self.in_cloud

    def decisive(self) -> Track | None:
        """Return the deployment (or awaited signal) to look at, None when none is to blame.

        It is the first one that failed; else, of those that are stuck, the one that came furthest:
        the runner takes them one after the other, so that the rest only wait for it.
        """
        with self._lock:
            failed = [each for each in self.deployments if each.failed]
            if failed:
                return min(failed, key=lambda each: each.failed_at)
            standing = [(each, stage) for each in self._tracks() if (stage := each.missing())]
            return max(standing, key=lambda pair: ORDER.index(pair[1]))[0] if standing else None

    def stuck(self) -> Track | None:
        """Return :meth:`decisive`, None when the server itself misses a stage before it."""
        with self._lock:
            return None if self._missing_of_server() is not None else self.decisive()

    def undelivered(self) -> list[str]:
        """Return the labels of the deployments of this server that were never delivered."""
        with self._lock:
            return [
                each.label
                for each in self.deployments
                if each.missing() is Stage.DEPLOYMENT_DELIVERED
            ]

    # -- what was reached ------------------------------------------------------------------------

    def marks(self) -> list[Mark]:
        """Return the stages that were reached, in order, including those that a later one proves.

        A stage of deployments is reached when all deployments that have to reach it have.
        """
        with self._lock:
            result: list[Mark] = []
            later: Mark | None = None
            behind = {each.missing() for each in self._tracks()} | {self.missing()}
            for stage in reversed(self.shown):
                mark = self._marks.get(stage) or self._of_waits.get(stage)
                if stage in behind:
                    continue
                if mark is None and later and stage not in ASKED and stage not in self.absent:
                    mark = later.implying(stage)
                if mark is not None:
                    result.append(mark)
                    if later is None or not mark.implied:
                        later = mark
            return result[::-1]

    def reached(self, stage: Stage) -> bool:
        """Return True when the stage was reached, itself or by a later one."""
        return any(mark.stage == stage for mark in self.marks())

    # -- events ----------------------------------------------------------------------------------

    def see(self, event: Event) -> None:
        """Take one event into account."""
        if not classify.concerns(event, self.server):
            return
        fresh: list[Mark] = []
        with self._lock:
            self.boots.see(event)
            if booted(event) or classify.is_request(event):
                self.boots.come_up()
            self._see_server(event)
            self._see_deployments(event, fresh)
            for row in STAGES:
                if row.proves is None or row.stage in self._marks:
                    continue
                if evidence := row.proves(event) or self._seed_read(row.stage, event):
                    if row.stage is Stage.METADATA_SERVED:
                        self._from_drive = classify.console_text(event) is not None
                    self._mark(Mark(row.stage, event.at, evidence), fresh, self._marks)
        if self._on_reached:
            for mark in fresh:
                self._on_reached(mark)

    def _see_server(self, event: Event) -> None:
        """Update the facts of the server itself and of its user data."""
        if started := PowerOn.of(event):
            self.started = event.at if self.started is None else self.started
            self._seed = started.seed
        elif boot := ServerBoot.of(event):
            self.name = boot.name
        elif (answer := NetworkAnswer.of(event)) is not None:
            self._network, self._answered_in = answer, self.boots.number
            if answer.up and (mark := self._marks.get(Stage.NETWORK_UP)):
                evidence = f"{mark.evidence}; {answer.text}"
                self._marks[Stage.NETWORK_UP] = replace(mark, evidence=evidence)
        elif (told := GuestAnswer.of(event)) is not None:
            self.answers[Stage(told.stage)] = told
        elif (given := UserDataParts.of(event)) is not None and given.sources is not None:
            self._has_source = bool(given.sources)
            parts = [handle.partition("/") for handle in given.handles or []]
            self.waits = [WaitSignal(stack, name) for stack, _, name in parts]
            self._await_signals()

    def _seed_read(self, stage: Stage, event: Event) -> str:
        """Return cloud-init's line that names the run's own seed, in the place of a drive."""
        text = (classify.console_text(event) or "") if self._seed else ""
        read = stage is Stage.METADATA_SERVED and f"[seed={self._seed}]" in text
        return text.strip() if read else ""

    def _see_deployments(self, event: Event, fresh: list[Mark]) -> None:
        if (listed := expected.deployments(event)) is not None:
            self._expect(listed)
        elif marker := classify.marker(event):
            self._see_marker(marker, event, fresh)
        elif classify.is_poll(event):
            if classify.answered(event):
                for each in classify.deployment_ids(event) or ():
                    if (track := self._by_id(each)) is not None:
                        self._advance(track, Stage.DEPLOYMENT_DELIVERED, event, fresh)
        elif classify.is_signal(event):
            self._see_signal(event, fresh)
        elif event.source == "stack":
            self._see_resource(event, fresh)

    def _expect(self, listed: Iterable[ExpectedDeployment]) -> None:
        """Set the deployments that Heat serves from now on, and withdraw all others."""
        wanted = {each.id: each for each in listed}
        for track in self.deployments:
            track.withdrawn = track.id not in wanted
        for identity, each in wanted.items():
            if (served := self._by_id(identity)) is None:
                served = DeploymentTrack(id=identity)
                self.deployments.append(served)
            served.expect(each)

    def _see_marker(self, marker: classify.Marker, event: Event, fresh: list[Mark]) -> None:
        track = self._by_id(marker.id)
        if track is None:
            return
        if marker.event == "finished":
            track.finish(marker.status, event.at)
        if marker.event == "rejected":
            track.rejected = marker.reason or "the runner gave no reason"
        if stage := classify.MARKED.get(marker.event):
            self._advance(track, Stage(stage), event, fresh)

    def _see_signal(self, event: Event, fresh: list[Mark]) -> None:
        path = classify.path(event)
        for track in self._tracks():
            if track.is_signalled_by(path):
                self._advance(track, Stage.SIGNAL_RECEIVED, event, fresh)

    def _see_resource(self, event: Event, fresh: list[Mark]) -> None:
        """Process an event of a resource in Heat: a deployment, a wait condition, a handle."""
        key = classify.resource_key(event)
        track = next((each for each in reversed(self._tracks()) if each.key == key), None)
        if classify.is_wait_condition(event):
            self._see_condition(key, event)
        elif track is not None and track.is_accepted_by(event):
            self._advance(track, Stage.SIGNAL_RECEIVED, event, fresh)
            self._advance(track, Stage.SIGNAL_ACCEPTED, event, fresh)
        change = StackResource.of(event)
        if isinstance(track, DeploymentTrack) and change and change.status == "FAILED":
            track.fail(change.reason, event.at)

    def _see_condition(self, key: tuple[str, str], event: Event) -> None:
        change = StackResource.of(event)
        if change and change.status == "COMPLETE":
            self._conditions.pop(key, None)
        else:
            self._conditions[key] = event
        self._await_signals()

    def _await_signals(self) -> None:
        """Expect a signal while a wait condition of its stack waits, in either order of events."""
        pending = {stack for stack, _ in self._conditions}
        for wait in self.waits:
            wait.awaited = wait.stack in pending

    def _by_id(self, identity: str) -> DeploymentTrack | None:
        """Return the deployment with that id, None for one that Heat never served."""
        return next((each for each in self.deployments if each.id == identity), None)

    def _advance(self, track: Track, stage: Stage, event: Event, fresh: list[Mark]) -> None:
        if stage in track.marks or stage not in track.stages:
            return
        mark = Mark(stage, event.at, classify.describe(event))
        track.marks[stage] = mark
        # The signal of a wait condition needs no agent, and so proves none.
        ours = isinstance(track, DeploymentTrack)
        self._mark(mark, fresh, self._marks if ours else self._of_waits)

    def _mark(self, mark: Mark, fresh: list[Mark], among: dict[Stage, Mark]) -> None:
        if mark.stage not in among:
            among[mark.stage] = mark
            fresh.append(mark)


def decisive(trackers: Iterable[StageTracker]) -> StageTracker:
    """Return the tracker of the server to look at.

    It is the one whose deployment failed first, else the one with the least progress.
    """

    def order(tracker: StageTracker) -> tuple[bool, float, int]:
        track = tracker.stuck()
        failed_at = track.failed_at if isinstance(track, DeploymentTrack) and track.failed else 0.0
        return (not failed_at, failed_at, furthest(tracker.missing()))

    return min(trackers, key=order)
