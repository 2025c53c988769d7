"""A verdict as test points, the rows that JUnit XML and TAP have in common.

Each stage of each server is a point, the stack is one, and so is each of the user's own checks.
The stage at fault fails, and the stages behind it are skipped with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from hotplate.checks.check import CheckResult, CheckStatus, failed
from hotplate.errors import Outcome
from hotplate.verdict.stages import Stage
from hotplate.verdict.verdict import ServerResult, Verdict


class PointStatus(StrEnum):
    """The result of a point; an error is not the subject's, a failure is."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"
    KNOWN = "known failure"


@dataclass(frozen=True)
class Point:
    """One row.

    :param server: its name where there are several; else "".
    :param seconds: never negative.
    :param kind: the fault, or the kind of a check's result; "" for none.
    :param message: why it failed or was skipped, in a sentence; for a check also a remark.
    :param detail: more about the failure of the run, several lines.
    :param output: the evidence of a stage, or the output of a check, which may hold secrets.
    """

    name: str
    status: PointStatus
    server: str = ""
    seconds: float = 0.0
    kind: str = ""
    message: str = ""
    detail: str = ""
    output: str = ""


def points_of(verdict: Verdict) -> list[Point]:
    """Return the points of a verdict: stages by server, the stack, checks."""
    points = [point for each in verdict.by_server() for point in _stages(verdict, each)]
    placed = any(_at_fault(verdict, each) is not None for each in verdict.by_server())
    # The stack took the time after the last stage.
    last = max((each.seconds or 0.0 for each in verdict.stages), default=0.0)
    seconds = max(0.0, verdict.seconds - last)
    if verdict.passed or failed(verdict.checks):
        # Checks run only where everything else had passed.
        stack = Point("stack", PointStatus.PASSED, seconds=seconds, output=verdict.status)
    elif placed:
        message = "see the stage that failed"
        stack = Point("stack", PointStatus.SKIPPED, seconds=seconds, message=message)
    else:
        stack = _fault(verdict, Point("stack", PointStatus.ERROR, seconds=seconds))
    return [*points, stack, *map(_check, verdict.checks)]


def all_seconds(verdict: Verdict) -> float:
    """Return the seconds that all points of a verdict took."""
    return verdict.seconds + sum(each.seconds for each in verdict.checks)


def _at_fault(verdict: Verdict, server: ServerResult) -> Stage | None:
    """Return the stage of this server at which the run went wrong."""
    if verdict.diagnosis is None or server.id != verdict.decided_by:
        return None
    stage = verdict.diagnosis.stage
    return stage if any(each.stage == stage for each in server.stages) else None


def _stages(verdict: Verdict, server: ServerResult) -> Iterator[Point]:
    at_fault = _at_fault(verdict, server)
    name = server.name if len(verdict.servers) > 1 else ""
    before = 0.0
    for each in server.stages:
        # Stages may be reached out of order: no time is negative.
        took = 0.0 if each.seconds is None else max(0.0, each.seconds - before)
        before += took
        point = Point(str(each.stage), PointStatus.PASSED, name, took)
        if each.stage == at_fault:
            yield _fault(verdict, point)
        elif each.said:
            # These do not depend on one another, so that each of them fails by itself.
            yield replace(point, status=PointStatus.FAILED, message=each.absence)
        elif each.seconds is None:
            yield replace(point, status=PointStatus.SKIPPED, message=each.absence)
        else:
            yield replace(point, output=each.evidence)


def _fault(verdict: Verdict, point: Point) -> Point:
    """Return the point with the failure of the run."""
    evidence = verdict.diagnosis.evidence if verdict.diagnosis else ()
    lines = [*verdict.reasons, *evidence]
    if verdict.artifacts:
        lines.append(f"artifacts: {verdict.artifacts}")
    of_subject = verdict.outcome is Outcome.FAILED
    return replace(
        point,
        status=PointStatus.FAILED if of_subject else PointStatus.ERROR,
        kind=verdict.diagnosis.fault if verdict.diagnosis else str(verdict.outcome),
        message=verdict.last_line(),
        detail="\n".join(lines),
    )


#: The status and the kind of a check's point.
_OF_CHECK = {
    CheckStatus.PASSED: (PointStatus.PASSED, ""),
    CheckStatus.FAILED: (PointStatus.FAILED, "check"),
    CheckStatus.SKIPPED: (PointStatus.SKIPPED, str(CheckStatus.SKIPPED)),
    CheckStatus.KNOWN: (PointStatus.KNOWN, str(CheckStatus.KNOWN)),
}


def _check(result: CheckResult) -> Point:
    status, kind = _OF_CHECK[result.status]
    return Point(
        f"check {result.name}",
        status,
        result.server,
        result.seconds,
        kind=kind,
        message=result.reason,
        output=result.output,
    )
