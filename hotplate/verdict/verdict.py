"""The verdict of one run: passed or not, why, and what was seen on the way."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotplate.errors import Outcome, outcome_of, sentence_of
from hotplate.events.log import Event, EventLog
from hotplate.verdict.diagnosis import Diagnosis, diagnose
from hotplate.verdict.stages import ROWS, Stage
from hotplate.verdict.tracker import StageTracker

# The format of verdict.json; raised when a field changes its meaning or goes.
FORMAT = 1


_OUTCOMES = {"machine-lost": Outcome.LOST, "host-disk": Outcome.HOST}
"""The faults that are not the image's."""


@dataclass(frozen=True)
class StageTime:
    """One expected stage of a run.

    :param seconds: from power-on until it was reached, None when it was not.
    :param implied: True when only a later stage proved it.
    """

    stage: Stage
    seconds: float | None
    evidence: str = ""
    implied: bool = False


@dataclass(frozen=True)
class Subject:
    """What was tested, and on what.

    :param stand_ins: what stood in for a part of a real cloud (Heat resource types mapped to
        nothing, for example), one sentence each.
    :param facts: what else a reader may want: accelerator, wiring, firmware, versions.
    """

    image: str
    template: str = ""
    server: str = ""
    stand_ins: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return Path(self.image).name


@dataclass(frozen=True)
class Verdict:
    """What is known at the end of a run.

    :param status: Heat's, such as ``CREATE_COMPLETE``, "" when there is no stack.
    :param reasons: sentences, the decisive one last.
    :param outputs: the stack's outputs.
    :param seconds: from power-on to the verdict.
    :param artefacts: the folder with everything, "" when it could not be written.
    """

    subject: Subject
    outcome: Outcome
    status: str
    reasons: tuple[str, ...]
    stages: tuple[StageTime, ...]
    outputs: Mapping[str, Any] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    seconds: float = 0.0
    artefacts: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.PASSED

    @property
    def exit_status(self) -> int:
        """What ``hotplate test`` ends with, see :data:`hotplate.errors.EXIT_STATUSES`."""
        return self.outcome.exit_status

    def last_line(self) -> str:
        """Return the one line that tells most: PASSED, or the stage and what to look at."""
        if self.passed:
            return "PASSED"
        if self.diagnosis is not None:
            word = "not reached" if self._unreached(self.diagnosis.stage) else "went wrong at"
            return f"{self.outcome.upper()}: {word}: {self.diagnosis}"
        return (
            f"{self.outcome.upper()}: {one_line(self.reasons[-1] if self.reasons else 'no reason')}"
        )

    def _unreached(self, stage: Stage) -> bool:
        return any(each.stage == stage and each.seconds is None for each in self.stages)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON types; ``format`` is the version of this document."""
        told = None
        if self.diagnosis is not None:
            told = {
                "fault": self.diagnosis.fault,
                "stage": str(self.diagnosis.stage),
                "seen": self.diagnosis.seen,
                "advice": self.diagnosis.advice,
                "evidence": list(self.diagnosis.evidence),
                "deployment": self.diagnosis.deployment,
            }
        return {
            "format": FORMAT,
            "passed": self.passed,
            "outcome": str(self.outcome),
            "exit_status": self.exit_status,
            "status": self.status,
            "image": self.subject.image,
            "template": self.subject.template,
            "server": self.subject.server,
            "seconds": round(self.seconds, 3),
            "reasons": list(self.reasons),
            "diagnosis": told,
            "stages": [
                {
                    "stage": str(each.stage),
                    "seconds": None if each.seconds is None else round(each.seconds, 3),
                    "implied": each.implied,
                    "evidence": each.evidence,
                }
                for each in self.stages
            ],
            "outputs": dict(self.outputs),
            "stand_ins": list(self.subject.stand_ins),
            "facts": dict(self.subject.facts),
            "artefacts": self.artefacts,
        }


def one_line(text: str) -> str:
    """Return a sentence, with its hint if it has one, as a single line."""
    sentence, _, hint = text.partition("\n  hint: ")
    words = " ".join(sentence.split())
    return f"{words} (hint: {' '.join(hint.split())})" if hint else words


def stage_times(tracker: StageTracker) -> tuple[StageTime, ...]:
    """Return the expected stages with their times, those that were not reached without one."""
    marks = {mark.stage: mark for mark in tracker.marks()}
    start = tracker.started
    if start is None:
        start = min((mark.at for mark in marks.values()), default=0.0)
    result = []
    for stage in tracker.expected:
        mark = marks.get(stage)
        if mark is None:
            result.append(StageTime(stage, None, f"look at {ROWS[stage].look}"))
        else:
            result.append(StageTime(stage, mark.at - start, mark.evidence, mark.implied))
    return tuple(result)


def judge(
    subject: Subject,
    events: Iterable[Event],
    tracker: StageTracker,
    *,
    stack_status: str,
    stack_reason: str = "",
    outputs: Mapping[str, Any] | None = None,
    said: Mapping[str, str] | None = None,
    problems: Sequence[str] = (),
    wanted: str = "",
    now: float,
    artefacts: str = "",
) -> Verdict:
    """Return the verdict on a run.

    A run passes only by positive signs: Heat says what was wanted, and every expected stage was
    seen or is proved by a later one.

    :param said: what each failed deployment wrote to its ``deploy_stderr``, by resource.
    :param wanted: the status that was to be reached; by default any that ends in ``_COMPLETE``.
    :param problems: expectations of the template's author that were not met, one sentence each.
    :param now: seconds on the monotonic clock when the run ended.
    """
    as_wanted = stack_status == wanted if wanted else stack_status.endswith("_COMPLETE")
    diagnosis = diagnose(
        events,
        tracker,
        # A failure that was wanted is nothing to explain.
        stack_status="" if as_wanted else stack_status,
        stack_reason=stack_reason,
        said=said,
        now=now,
    )
    outcome = Outcome.PASSED
    reasons = []
    if not as_wanted:
        outcome = Outcome.FAILED
        told = f": {stack_reason}" if stack_reason else ""
        instead = f"; expected {wanted}" if wanted.endswith("_FAILED") else ""
        reasons.append(f"Heat says {stack_status or 'nothing'}{told}{instead}")
    if diagnosis is not None:
        outcome = _OUTCOMES.get(diagnosis.fault, Outcome.FAILED)
    if problems:
        outcome = Outcome.FAILED
        reasons += problems
    if diagnosis is not None:
        reasons.append(str(diagnosis))
    return Verdict(
        subject=subject,
        outcome=outcome,
        status=stack_status,
        reasons=tuple(reasons),
        stages=stage_times(tracker),
        outputs=dict(outputs or {}),
        diagnosis=diagnosis,
        seconds=now - tracker.started if tracker.started is not None else 0.0,
        artefacts=artefacts,
    )


def of_error(
    error: BaseException,
    subject: Subject,
    events: EventLog,
    *,
    now: float,
    artefacts: str = "",
) -> Verdict:
    """Return the verdict on a run that an exception ended: it is never one on the image by chance.

    :param error: a refused template, a fault of the host, an interrupt, or a fault of ours.
    :param events: what was seen until then; the stages are those of the first server.
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
        seconds=now - tracker.started if tracker.started is not None else 0.0,
        artefacts=artefacts,
    )
