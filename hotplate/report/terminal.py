"""The terminal output during a run, and at its end.

On a terminal one line is live (stage, elapsed, expected); elsewhere each stage is one plain line.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from hotplate.output import LiveLine, usually
from hotplate.text import clean, clean_line
from hotplate.verdict.stages import Mark, Stage
from hotplate.verdict.verdict import StageTime, Verdict, one_line

# A long value belongs in the artifacts, not all over the screen.
VALUE_LINES = 12
VALUE_WIDTH = 200


class Progress:
    """Shows the stages of one run as they are reached.

    A context manager; :meth:`reached` is for ``on_reached`` of
    :class:`~hotplate.verdict.tracker.StageTracker`.

    :param expected: seconds from power-on to each stage in earlier runs.
    :param stages: those that the run is expected to reach.
    :param quiet: write nothing at all.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        stages: tuple[Stage, ...],
        expected: Mapping[str, float] | None = None,
        quiet: bool = False,
    ) -> None:
        self._stages = stages
        self._expected = dict(expected or {})
        self._start = time.monotonic()
        self._powered = False
        self._said, self._said_at = "", self._start
        self._waiting: Stage | None = stages[0] if stages else None
        self._done: dict[str, set[Stage]] = {}
        self._lock = threading.Lock()
        self._lines = LiveLine(stream, self._line, quiet=quiet)

    def __enter__(self) -> Progress:
        self._lines.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._lines.__exit__(*exc)

    def powered(self, at: float) -> None:
        """Count elapsed times from the power-on of the first machine."""
        if not self._powered:
            self._start = at
        self._powered = True

    def say(self, text: str) -> None:
        """Write a line between the stages; before the power-on it is the present action."""
        self._lines.say(clean(text))
        if not self._powered:
            self._said, self._said_at = clean_line(text), time.monotonic()

    def reached(self, mark: Mark, server: str = "") -> None:
        """Show that a stage was reached.

        :param server: the name of the server, where there are several.
        """
        with self._lock:
            done = self._done.setdefault(server, set())
            if mark.stage in done:
                return
            # Do not wait for stages that a later one proves.
            if mark.stage in self._stages:
                done.update(self._stages[: self._stages.index(mark.stage) + 1])
            self._waiting = self._next()
        usual = self._expected.get(mark.stage)
        estimate = f"  (usually {usual:.0f} s)" if usual else ""
        elapsed = max(0.0, mark.at - self._start)
        whose = f"{clean(server)}: " if server else ""
        self._lines.say(f"{elapsed:7.1f} s  {whose}{mark.stage}{estimate}")

    def _next(self) -> Stage | None:
        """Return the first stage that some server has not reached yet."""
        done = set.intersection(*self._done.values())
        return next((stage for stage in self._stages if stage not in done), None)

    def _line(self) -> str:
        now = time.monotonic()
        if not self._powered:
            return f"{now - self._said_at:7.1f} s  {self._said}" if self._said else ""
        if self._waiting is None:
            return ""
        elapsed = now - self._start
        usual = usually(elapsed, self._expected.get(self._waiting))
        return f"{elapsed:7.1f} s  waiting for: {self._waiting}{usual}"


def _value(value: object) -> list[str]:
    """Return a stack output as lines, shortened, safe for a terminal."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    lines = [clean(line) for line in text.rstrip("\n").split("\n")]
    shown = [
        line if len(line) <= VALUE_WIDTH else line[:VALUE_WIDTH] + " ..."
        for line in lines[:VALUE_LINES]
    ]
    if len(lines) > VALUE_LINES:
        shown.append(f"... {len(lines) - VALUE_LINES} more lines, see verdict.json")
    return shown


def _stages(stages: Sequence[StageTime]) -> list[str]:
    lines = []
    for each in stages:
        if each.seconds is None:
            why = "" if each.absence == "not reached" else f"  ({clean(each.absence)})"
            lines.append(f"         -  {each.stage}{why}")
        else:
            how = "  (proved by a later stage)" if each.implied else ""
            lines.append(f"  {each.seconds:6.1f} s  {each.stage}{how}")
    return lines


def _servers(verdict: Verdict) -> list[str]:
    """Return the stages of each server, under its name where there are several."""
    if len(verdict.servers) < 2:
        return _stages(verdict.stages)
    lines = []
    for server in verdict.servers:
        lines += [f"server {clean(server.name)}", *_stages(server.stages)]
    return lines


def _deployments(verdict: Verdict) -> list[str]:
    """Return the progress of each deployment, where there are several."""
    rows = [(server.name, each) for server in verdict.servers for each in server.deployments]
    if len(rows) < 2:
        return []
    several = len(verdict.servers) > 1
    lines = []
    for name, each in rows:
        where = f" on {name}" if several else ""
        lines.append(f"{each.label}{where} ({each.group}): {each.outcome}")
    return _block("deployments", lines)


def _checks(verdict: Verdict) -> list[str]:
    """Return a row for each of the user's own checks."""
    lines = []
    for each in verdict.checks:
        why = f": {one_line(each.reason)}" if each.reason else ""
        lines.append(f"{each.seconds:6.1f} s  {each.label}  {each.status}{why}")
    return _block("checks", lines)


def _block(title: str, lines: Iterable[str]) -> list[str]:
    """Return lines below a title; nothing without lines."""
    shown = [f"  {clean(line)}" for line in lines]
    return ["", title, *shown] if shown else []


def summary(verdict: Verdict) -> str:
    """Return the final block; its last line is PASSED, or the stage and the advice."""
    lines = [*_servers(verdict), *_deployments(verdict), *_checks(verdict)]
    if lines:
        lines.insert(0, "")
    if verdict.outputs:
        lines += ["", "outputs"]
        for name, value in sorted(verdict.outputs.items()):
            first, *rest = _value(value) or [""]
            lines.append(f"  {clean(name)} = {first}")
            lines += [f"    {line}" for line in rest]
    lines += _block("stood in for a real cloud", verdict.subject.stand_ins)
    if len(verdict.unmet) > 1:
        lines += _block("not as expected", map(one_line, verdict.unmet))
    lines += _block("noticed", map(str, verdict.noticed))
    if verdict.diagnosis is not None:
        evidence = (clean(line)[:VALUE_WIDTH] for line in verdict.diagnosis.evidence)
        lines += _block("evidence", evidence)
    if lines:
        lines.append("")
    # The last line already has one reason of a run that did not pass.
    shown = verdict.reasons if verdict.passed else verdict.reasons[:-1]
    lines += [clean(one_line(reason)) for reason in shown if reason not in verdict.unmet]
    # Counted from power-on, which a stack without a machine never saw.
    after = f" after {verdict.seconds:.0f} s" if verdict.seconds else ""
    if verdict.status and not verdict.subject.plain:
        lines.append(f"stack: {clean(verdict.status)}{after}")
    elif verdict.status and after:
        # A plain run has a stack that its user did not name.
        lines.append(f"ended{after}")
    if verdict.artifacts:
        lines.append(f"artifacts: {verdict.artifacts}")
    lines.append(clean(verdict.last_line()))
    return "\n".join(lines) + "\n"
