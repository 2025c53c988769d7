"""The diagnosis of a run: the stage that failed, the symptom, and the advice."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from hotplate.events import classify
from hotplate.events.event import Event
from hotplate.text import clean
from hotplate.verdict import detectors, rules
from hotplate.verdict.facts import Facts
from hotplate.verdict.hook_output import HookOutput
from hotplate.verdict.stages import ROWS, Stage
from hotplate.verdict.tracker import StageTracker

# The most lines of evidence, which have to fit on the first screen.
EVIDENCE = 6


@dataclass(frozen=True)
class Diagnosis:
    """The answer to "why?".

    :param fault: a stable word (:data:`hotplate.verdict.rules.RULES`), ``unknown`` when no rule
        matches.
    :param stage: the stage that was not reached, or at which it went wrong; None for a failure of
        Heat's own, independent of the servers' progress.
    :param seen: the symptom, a sentence without its full stop.
    :param advice: where to look, or how to fix it.
    :param evidence: a few lines from both ends.
    :param deployment: the deployment concerned, "" when it is none or all.
    :param group: of its hook.
    :param server: the name of the server concerned.
    :param among: words that distinguish it from others, such as ``server "db"``; "" when there
        are none.
    """

    fault: str
    stage: Stage | None
    seen: str
    advice: str
    evidence: tuple[str, ...] = ()
    deployment: str = ""
    group: str = ""
    server: str = ""
    among: str = ""

    def __str__(self) -> str:
        among = f" ({self.among})" if self.among else ""
        where = f"{self.stage}{among}: " if self.stage else ""
        # It quotes a guest, its disk or a hook; Heat's reason may end with an output's line feed.
        seen = " ".join(self.seen.split())
        # Sentences of the runner and of Heat end with a full stop of their own.
        end = "" if seen.endswith(".") else "."
        return clean(f"{where}{seen}{end} {self.advice[:1].upper()}{self.advice[1:]}")

    def to_json(self) -> dict[str, object]:
        """Return it as JSON types."""
        return {
            "fault": self.fault,
            "stage": str(self.stage) if self.stage else None,
            "seen": self.seen,
            "advice": self.advice,
            "evidence": list(self.evidence),
            "server": self.server,
            "deployment": self.deployment,
            "group": self.group,
        }


def diagnose(
    events: Iterable[Event],
    tracker: StageTracker,
    *,
    stack_status: str = "",
    stack_reason: str = "",
    hook_outputs: Mapping[str, HookOutput] | None = None,
    now: float | None = None,
) -> Diagnosis | None:
    """Return the diagnosis of a run, None when nothing is wrong.

    :param stack_status: Heat's, such as ``CREATE_FAILED``; "" when there is none.
    :param stack_reason: Heat's reason for it.
    :param hook_outputs: the output of each failed deployment, by the id of its config.
    :param now: seconds on the monotonic clock; by default now.
    """
    facts = Facts(
        missing=tracker.missing(),
        track=tracker.stuck(),
        undelivered=tracker.undelivered(),
        stack_status=stack_status,
        stack_reason=stack_reason,
        now=time.monotonic() if now is None else now,
        powered=tracker.started,
        boots=tracker.boots,
        hook_outputs=dict(hook_outputs or {}),
    )
    if facts.missing in tracker.answers:
        facts.answer = tracker.answers[facts.missing].text
    facts.read(events, tracker.server)
    if facts.missing is None and not (facts.failed or facts.stopped or facts.paused):
        return None
    return replace(
        _explain(facts, in_cloud=tracker.in_cloud),
        deployment=facts.track.label if facts.track else "",
        group=facts.track.group if facts.track else "",
        server=tracker.name,
        evidence=_evidence(facts),
    )


def _explain(facts: Facts, *, in_cloud: bool) -> Diagnosis:
    """Return the diagnosis of the first rule that matches, else a generic one."""
    stage = facts.missing or Stage.SIGNAL_ACCEPTED
    for rule in rules.RULES:
        if rule.is_asked(facts.missing) and (seen := rule.sees(facts)):
            advice = rule.in_cloud if in_cloud and rule.in_cloud else rule.advice
            if rule.unsent and not facts.has_output:
                advice = rule.unsent
            at = None if rule.of_stack else rule.stage or stage
            return Diagnosis(rule.fault, at, seen, advice)
    seen, advice = detectors.any_pattern(facts, in_cloud=in_cloud)
    if seen:
        return Diagnosis("unknown", stage, seen, advice)
    return Diagnosis("unknown", stage, _silence(facts), ROWS[stage].advice(in_cloud=in_cloud))


def _silence(facts: Facts) -> str:
    if facts.last_event is None:
        return "nothing was seen of this server"
    seconds = max(0.0, facts.now - facts.last_event.at)
    return f"nothing for {seconds:.0f} s; the last was {classify.describe(facts.last_event)}"


def _evidence(facts: Facts) -> tuple[str, ...]:
    """Return the last line of each kind, so that both ends are represented."""
    chosen: list[str] = [f"console: {finding.line}" for finding in facts.findings.values()][:3]
    for group in (facts.metadata, facts.polls, facts.signals, facts.stack):
        if group:
            chosen.append(classify.describe(group[-1]))
    spoken = [line.strip() for line in facts.lines if line.strip()]
    chosen += [f"console: {line}" for line in spoken[-2:]]
    return tuple(dict.fromkeys(chosen))[:EVIDENCE]
