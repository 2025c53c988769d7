"""The verdict of one run: passed or not, the reason, and the evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hotplate.checks.check import CheckResult
from hotplate.errors import Interrupted, Outcome, outcome_of, sentence_of
from hotplate.events import classify
from hotplate.events.event import Event
from hotplate.events.kinds import StackResource
from hotplate.events.log import EventLog
from hotplate.verdict.diagnosis import Diagnosis, diagnose
from hotplate.verdict.hook_output import HookOutput, left_out, without_secrets
from hotplate.verdict.noticed import Noticed, notice
from hotplate.verdict.stages import ROWS, Stage
from hotplate.verdict.tracker import StageTracker, decisive

# The format of verdict.json; raised when a field changes its meaning or goes.
FORMAT = 2


NOT_VISIBLE = "not visible here"

#: The faults that are not the image's.
_OUTCOMES = {
    "machine-lost": Outcome.LOST,
    "emulation-failed": Outcome.LOST,
    "host-overloaded": Outcome.LOST,
    "host-disk": Outcome.HOST,
    # The harness, or the cloud, chose the CPU.
    "bad-cpu": Outcome.HOST,
}
#: The faults that only mean that something has not ended.
_UNFINISHED = ("hook-hanging", "wait-signal-missing", "unknown")
_UNFINISHED_BOOT = {
    True: "the user data had not ended when the run did, and nothing waited for it",
    False: "the boot had not ended when the run did",
}


@dataclass(frozen=True)
class StageTime:
    """One expected stage of a run.

    :param seconds: from power-on until it was reached, None when it was not.
    :param implied: True when only a later stage proved it.
    :param visible: False when it was not seen and need not be, where the server runs.
    :param absent: why it is not judged: the image has nothing that could reach it, or nothing
        shows it; "" when it is.
    :param said: the guest's answer, where it was asked and has not reached it.
    """

    stage: Stage
    seconds: float | None
    evidence: str = ""
    implied: bool = False
    visible: bool = True
    absent: str = ""
    said: str = ""

    @property
    def absence(self) -> str:
        """The reason why it has no time, in words."""
        if self.absent:
            return f"not judged: {self.absent}"
        if not self.visible:
            return NOT_VISIBLE
        return f"not reached: {self.said}" if self.said else "not reached"

    @property
    def due(self) -> bool:
        """True when it has to be reached."""
        return self.visible and not self.absent

    def to_json(self) -> dict[str, object]:
        """Return it as JSON types."""
        return {
            "stage": str(self.stage),
            "seconds": None if self.seconds is None else round(self.seconds, 3),
            "implied": self.implied,
            "visible": self.visible,
            "absent": self.absent,
            "evidence": self.evidence,
        }


@dataclass(frozen=True)
class DeploymentResult:
    """The progress of one deployment.

    :param label: its resource, with its parents.
    :param group: of its hook.
    :param missing: the first due stage that was not reached.
    :param failed: why it failed, "" when it did not.
    """

    label: str
    group: str
    transport: str
    missing: Stage | None
    failed: str = ""

    @property
    def outcome(self) -> str:
        """The result in a word or two."""
        if self.failed:
            return "failed"
        return f"not reached: {self.missing}" if self.missing else "done"


@dataclass(frozen=True)
class ServerResult:
    """The progress of one server, and of each of its deployments."""

    id: str
    name: str
    stages: tuple[StageTime, ...]
    deployments: tuple[DeploymentResult, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return it as JSON types."""
        return {
            "id": self.id,
            "name": self.name,
            "stages": [each.to_json() for each in self.stages],
            "deployments": [
                {
                    "deployment": each.label,
                    "group": each.group,
                    "signal_transport": each.transport,
                    "missing": str(each.missing) if each.missing else None,
                    "failed": each.failed,
                }
                for each in self.deployments
            ],
        }


@dataclass(frozen=True)
class StackResult:
    """The end of the stack.

    :param status: Heat's, such as ``CREATE_COMPLETE``; the last one when it was given up.
    :param reason: Heat's words, or why the wait for it ended early.
    :param wanted: the expected status; by default any that ends in ``_COMPLETE``.
    :param outputs: of the stack.
    :param output_errors: Heat's reasons for the outputs that it could not resolve.
    :param hook_outputs: the output of each failed deployment, by the id of its config.
    :param unsent: the outputs that a deployment had to send and did not, by its config's id.
    :param given_up: a sentence, when the run's limit passed while something was still at work.
    """

    status: str
    reason: str = ""
    wanted: str = ""
    outputs: Mapping[str, object] = field(default_factory=dict)
    output_errors: Mapping[str, str] = field(default_factory=dict)
    hook_outputs: Mapping[str, HookOutput] = field(default_factory=dict)
    unsent: Mapping[str, Sequence[str]] = field(default_factory=dict)
    given_up: str = ""

    @property
    def as_wanted(self) -> bool:
        """True when it ended with the wanted status."""
        if self.wanted:
            return self.status == self.wanted
        return self.status.endswith("_COMPLETE")

    def problem(self) -> str:
        """Return the difference from the wanted status in a sentence, "" when there is none."""
        if self.as_wanted:
            return ""
        why = f": {self.reason}" if self.reason else ""
        instead = f"; expected {self.wanted}" if self.wanted.endswith("_FAILED") else ""
        return f"Heat says {self.status or 'nothing'}{why}{instead}"


@dataclass(frozen=True)
class Subject:
    """The image under test, and the environment of the test.

    :param stand_ins: the stubs for parts of a real cloud (Heat resource types mapped to nothing,
        for example), one sentence each.
    :param facts: more for the reader: accelerator, wiring, firmware, versions.
    :param case: its name among the others of a command; "" for that of the image.
    :param plain: the test is the built-in one of an image without an agent.
    """

    image: str
    template: str = ""
    server: str = ""
    stand_ins: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    case: str = ""
    plain: bool = False

    def __str__(self) -> str:
        return self.case or Path(self.image).name


@dataclass(frozen=True)
class Verdict:
    """The result of a run.

    :param status: Heat's, such as ``CREATE_COMPLETE``, "" when there is no stack.
    :param reasons: sentences, the decisive one last.
    :param stages: of the server that decides.
    :param servers: all of them, in the order of their start.
    :param decided_by: the id of the server that decides.
    :param outputs: the stack's outputs.
    :param seconds: from power-on to the verdict on the boot; the checks have their own.
    :param artifacts: the folder with everything, "" when it could not be written.
    :param noticed: problems that did not prevent the end of the run.
    :param signal: the number of the signal that interrupted the run, 0 when none did.
    :param checks: the results of the user's own checks.
    :param unmet: the reasons that are expectations of the template's author, in their order.
    """

    subject: Subject
    outcome: Outcome
    status: str
    reasons: tuple[str, ...]
    stages: tuple[StageTime, ...]
    outputs: Mapping[str, object] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    seconds: float = 0.0
    artifacts: str = ""
    servers: tuple[ServerResult, ...] = ()
    decided_by: str = ""
    noticed: tuple[Noticed, ...] = ()
    signal: int = 0
    unmet: tuple[str, ...] = ()
    checks: tuple[CheckResult, ...] = ()

    def by_server(self) -> tuple[ServerResult, ...]:
        """Return each server's result; a single nameless one when no server is known."""
        return self.servers or (ServerResult(self.decided_by, self.subject.server, self.stages),)

    @property
    def times(self) -> dict[str, float]:
        """The seconds to each stage that was reached, and not proved by a later one alone."""
        return {
            each.stage: each.seconds
            for each in self.stages
            if each.seconds is not None and not each.implied
        }

    @property
    def passed(self) -> bool:
        """True when the image passed."""
        return self.outcome is Outcome.PASSED

    @property
    def exit_status(self) -> int:
        """The exit status of ``hotplate test``, see :data:`hotplate.errors.EXIT_STATUSES`."""
        return 128 + self.signal if self.signal else self.outcome.exit_status

    def without(self, secrets: Iterable[str], redact: Callable[[str], str]) -> Verdict:
        """Return a copy with "REDACTED" in place of each secret in what it quotes.

        See :func:`~hotplate.verdict.hook_output.without_secrets`.
        """
        clean = partial(without_secrets, secrets=frozenset(secrets), redact=redact)
        diagnosis = self.diagnosis
        if diagnosis is not None:
            seen, evidence = clean(diagnosis.seen), tuple(clean(diagnosis.evidence))
            diagnosis = replace(diagnosis, seen=seen, evidence=evidence)
        return replace(
            self,
            reasons=tuple(clean(self.reasons)),
            outputs=clean(self.outputs),
            diagnosis=diagnosis,
            noticed=tuple(replace(each, sentence=clean(each.sentence)) for each in self.noticed),
            unmet=tuple(clean(self.unmet)),
        )

    def last_line(self) -> str:
        """Return the most important line: PASSED, or the stage and the advice."""
        if self.passed:
            return "PASSED"
        if self.diagnosis is not None:
            stage = self.diagnosis.stage
            word = "not reached: " if self._unreached(stage) else "went wrong at: "
            return f"{self.outcome.upper()}: {word if stage else ''}{self.diagnosis}"
        reason = one_line(self.decisive or "no reason")
        others = len(self.reasons) - 1
        more = f" (one of {others + 1} reasons, see above)" if others > 0 else ""
        return f"{self.outcome.upper()}: {reason}{more}"

    @property
    def decisive(self) -> str:
        """The most important reason, "" without any."""
        if self.unmet and self.diagnosis is None and self.outcome is Outcome.FAILED:
            # The first unmet expectation of a guest is often the cause of the others.
            return self.unmet[0]
        return self.reasons[-1] if self.reasons else ""

    def _unreached(self, stage: Stage | None) -> bool:
        return any(
            each.stage == stage and each.due and each.seconds is None for each in self.stages
        )

    def to_json(self) -> dict[str, object]:
        """Return the verdict as JSON types; ``format`` is the version of this document."""
        return {
            "format": FORMAT,
            "passed": self.passed,
            "outcome": str(self.outcome),
            "exit_status": self.exit_status,
            "status": self.status,
            "case": str(self.subject),
            "image": self.subject.image,
            "template": self.subject.template,
            "server": self.subject.server,
            "seconds": round(self.seconds, 3),
            "reasons": list(self.reasons),
            "diagnosis": self.diagnosis.to_json() if self.diagnosis else None,
            "stages": [each.to_json() for each in self.stages],
            "servers": [each.to_json() for each in self.servers],
            "decided_by": self.decided_by,
            "checks": [each.to_json() for each in self.checks],
            "noticed": [each.to_json() for each in self.noticed],
            "outputs": dict(self.outputs),
            "stand_ins": list(self.subject.stand_ins),
            "facts": dict(self.subject.facts),
            "artifacts": self.artifacts,
        }


def one_line(text: str) -> str:
    """Return a sentence, with its hint if it has one, as a single line."""
    sentence, _, hint = text.partition("\n  hint: ")
    words = " ".join(sentence.split())
    return f"{words} (hint: {' '.join(hint.split())})" if hint else words


def stage_times(tracker: StageTracker) -> tuple[StageTime, ...]:
    """Return the stages with their times; those not reached or not seen have none."""
    marks = {mark.stage: mark for mark in tracker.marks()}
    start = tracker.started
    if start is None:
        start = min((mark.at for mark in marks.values()), default=0.0)
    result = []
    for stage in tracker.shown:
        mark = marks.get(stage)
        answer = tracker.answers.get(stage)
        if stage in tracker.absent:
            result.append(StageTime(stage, None, absent=tracker.absent[stage]))
        elif mark is None and stage in tracker.unseen:
            result.append(StageTime(stage, None, visible=False))
        elif mark is None and answer is not None:
            result.append(StageTime(stage, None, answer.text, said=answer.text))
        elif mark is None:
            result.append(StageTime(stage, None, ROWS[stage].advice(in_cloud=tracker.in_cloud)))
        else:
            result.append(StageTime(stage, mark.at - start, mark.evidence, mark.implied))
    return tuple(result)


def server_result(tracker: StageTracker) -> ServerResult:
    """Return the progress of a server."""
    deployments = [
        DeploymentResult(
            label=track.label,
            group=track.group,
            transport=track.expected.transport if track.expected else "",
            missing=track.missing(),
            failed=track.failed,
        )
        for track in tracker.deployments
        if not track.withdrawn
    ]
    return ServerResult(tracker.server, tracker.name, stage_times(tracker), tuple(deployments))


def among(trackers: Sequence[StageTracker], tracker: StageTracker) -> str:
    """Return the words that distinguish a diagnosis from others; "" when there are none."""
    words = [f'server "{tracker.name}"'] if len(trackers) > 1 else []
    track = tracker.stuck()
    if track is not None and len(tracker.deployments) + len(tracker.waits) > 1:
        words.append(track.named)
    return ", ".join(words)


def judge(
    subject: Subject,
    events: Sequence[Event] | EventLog,
    trackers: Sequence[StageTracker],
    stack: StackResult,
    *,
    problems: Sequence[str] = (),
    strict: bool = False,
    skip: Iterable[str] = (),
    now: float,
    artifacts: str = "",
) -> Verdict:
    """Return the verdict on a run.

    A run passes only by positive signs: Heat reports the wanted status, and every due stage was
    seen or is proved by a later one.

    :param trackers: one for each server.
    :param problems: expectations of the template's author that were not met, one sentence each.
    :param strict: any notice of a problem fails the run.
    :param skip: see :func:`~hotplate.verdict.noticed.notice`.
    :param now: seconds on the monotonic clock when the run ended.
    """
    tracker = decisive(trackers)
    diagnosis = diagnose(
        events,
        tracker,
        # A wanted failure needs no explanation.
        stack_status="" if stack.as_wanted else stack.status,
        stack_reason=stack.reason,
        hook_outputs=stack.hook_outputs,
        now=now,
    )
    cut = [
        f'of the output "{name}" {missing}'
        for name, value in stack.outputs.items()
        if (missing := left_out(str(value)))
    ]
    unresolved = [
        f'the output "{name}" has no value, because Heat could not resolve it: {one_line(error)}'
        for name, error in stack.output_errors.items()
    ]
    of_outputs = [*cut, *unresolved] if problems else []
    reasons = [*filter(None, [stack.problem()]), *problems, *of_outputs]
    if diagnosis is None and stack.status.endswith("IN_PROGRESS"):
        reasons += _waited_for(events)
    outcome = Outcome.FAILED if reasons else Outcome.PASSED
    if diagnosis is not None:
        diagnosis = replace(diagnosis, among=among(trackers, tracker))
        outcome = Outcome.FAILED if problems else _OUTCOMES.get(diagnosis.fault, Outcome.FAILED)
    if problems and any(classify.is_loss(event) for event in events):
        # The guest is gone, so its checks are unknown.
        outcome = Outcome.LOST
        reasons.append("the machine was lost while the guest was being examined")
    seen = _noticed(events, trackers, stack, skip)
    seen += tuple(Noticed("output-error", sentence) for sentence in unresolved)
    seen += tuple(Noticed("output-cut", sentence) for sentence in cut)
    if outcome is Outcome.PASSED and (
        bad := [each for each in seen if each.fails or (strict and each.wrong)]
    ):
        outcome = Outcome.FAILED
        reasons += map(str, reversed(bad))
    if stack.given_up and outcome is Outcome.FAILED and not problems:
        if diagnosis is None or diagnosis.fault in _UNFINISHED:
            outcome = Outcome.GIVEN_UP
        reasons.append(stack.given_up)
    if diagnosis is not None:
        reasons.append(str(diagnosis))
    return Verdict(
        subject=subject,
        outcome=outcome,
        status=stack.status,
        reasons=tuple(reasons),
        stages=stage_times(tracker),
        outputs=dict(stack.outputs),
        diagnosis=diagnosis,
        seconds=_seconds(tracker, now),
        artifacts=artifacts,
        servers=tuple(server_result(each) for each in trackers if each.exists),
        decided_by=tracker.server,
        noticed=seen,
        unmet=tuple(problems),
    )


def _waited_for(events: Iterable[Event]) -> list[str]:
    """Return the resources that Heat waits for, in a sentence; none depends on a known server."""
    changes = filter(None, map(StackResource.of, events))
    last = {
        (change.stack_id, change.resource): change
        for change in changes
        if change.type != classify.STACK_TYPE
    }
    names = [
        f'{change.type} "{change.label or change.resource}"'
        for change in last.values()
        if change.status == "IN_PROGRESS"
    ]
    return [f"Heat waits for {', '.join(names)}"] if names else []


def _noticed(
    events: Iterable[Event],
    trackers: Sequence[StageTracker],
    stack: StackResult,
    skip: Iterable[str],
) -> tuple[Noticed, ...]:
    labels = {each.id: each.label for tracker in trackers for each in tracker.deployments}
    names = {each.server: each.name if len(trackers) > 1 else "" for each in trackers}
    seen = notice(
        events,
        names,
        unsent={labels.get(config, config): outputs for config, outputs in stack.unsent.items()},
        skip=skip,
    )
    late = [
        Noticed("boot-unfinished", _UNFINISHED_BOOT[each.boots.runs_user_data], names[each.server])
        for each in trackers
        if each.checked and each.exists and each.missing() is None and not each.boots.ended
    ]
    return (*seen, *(replace(each, wrong=False) for each in late))


@dataclass(frozen=True)
class EndedTest:
    """A test that has ended, which judges its server by itself.

    :param problem: why it failed, "" when it did not.
    :param lost: the machine was lost.
    :param faulty: hotplate itself has failed meanwhile, so that a failure is no verdict.
    """

    name: str
    problem: str = ""
    lost: bool = False
    faulty: bool = False
    diagnosis: Diagnosis | None = None


def of_test(
    subject: Subject,
    tracker: StageTracker,
    test: EndedTest,
    *,
    status: str,
    noticed: tuple[Noticed, ...],
    now: float,
    artifacts: str,
) -> Verdict:
    """Return the verdict on the server of a test.

    :param status: of the last stack that it made, "" when it made none.
    :param now: seconds on the monotonic clock when the test ended.
    """
    outcome = Outcome.FAILED if test.problem else Outcome.PASSED
    outcome = Outcome.LOST if test.lost else outcome
    return Verdict(
        subject=subject,
        outcome=outcome,
        status=status,
        reasons=(test.problem,) if test.problem else (),
        stages=stage_times(tracker),
        diagnosis=test.diagnosis,
        seconds=_seconds(tracker, now),
        artifacts=artifacts,
        noticed=noticed,
    )


def _seconds(tracker: StageTracker, now: float) -> float:
    """Return the seconds from power-on until then; 0 when the power was never on."""
    return now - tracker.started if tracker.started is not None else 0.0


def of_error(
    error: BaseException,
    subject: Subject,
    events: EventLog,
    *,
    now: float,
    artifacts: str = "",
) -> Verdict:
    """Return the verdict on a run that an exception ended; it never judges the image by accident.

    :param error: a refused template, a fault of the host, an interrupt, or a fault of ours.
    :param events: the events until then; the stages are those of the first server.
    :param now: seconds on the monotonic clock when the run ended.
    """
    powered = (each.server for each in events if each.kind == "power-on")
    tracker = StageTracker(events, next(powered, ""))
    tracker.close()
    return Verdict(
        subject=subject,
        outcome=outcome_of(error),
        status="",
        reasons=(sentence_of(error),),
        stages=stage_times(tracker) if tracker.started is not None else (),
        seconds=_seconds(tracker, now),
        artifacts=artifacts,
        signal=error.number if isinstance(error, Interrupted) else 0,
    )
