"""The terminal output during a run, and at its end.

On a terminal one line is live (stage, elapsed, expected); elsewhere each stage is one plain line.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TextIO

from hotplate.text import clean
from hotplate.verdict.stages import Mark, Stage
from hotplate.verdict.verdict import StageTime, Verdict, one_line

# A long value belongs in the artifacts, not all over the screen.
VALUE_LINES = 12
VALUE_WIDTH = 200
_BAR = 20


def is_live(stream: TextIO) -> bool:
    """Return True when a line can be redrawn on the stream."""
    return stream.isatty()


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
        expected: Mapping[Stage, float] | None = None,
        quiet: bool = False,
    ) -> None:
        self._stream = stream
        self._stages = stages
        self._expected = dict(expected or {})
        self._quiet = quiet
        self._live = not quiet and is_live(stream)
        self._start = time.monotonic()
        self._powered = False
        self._waiting: Stage | None = stages[0] if stages else None
        self._done: dict[str, set[Stage]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> Progress:
        if self._live:
            # A daemon thread does not keep the process from ending.
            self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._ticker.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join()
        # The thread has ended, so that nothing draws the line again.
        with self._lock:
            self._wipe()

    def powered(self, at: float | None = None) -> None:
        """Count elapsed times from here, the power-on of the first machine."""
        if not self._powered:
            self._start = time.monotonic() if at is None else at
        self._powered = True

    def say(self, text: str) -> None:
        """Write a line between the stages."""
        if self._quiet:
            return
        with self._lock:
            self._wipe()
            self._write(f"{clean(text)}\n")

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
            if self._quiet:
                return
            self._wipe()
            usual = self._expected.get(mark.stage)
            estimate = f"  (usually {usual:.0f} s)" if usual else ""
            elapsed = max(0.0, mark.at - self._start)
            whose = f"{clean(server)}: " if server else ""
            self._write(f"{elapsed:7.1f} s  {whose}{mark.stage}{estimate}\n")

    def _next(self) -> Stage | None:
        """Return the first stage that some server has not reached yet."""
        done = set.intersection(*self._done.values())
        return next((stage for stage in self._stages if stage not in done), None)

    def _tick(self) -> None:
        while not self._ended.wait(0.5):
            with self._lock:
                self._wipe()
                if self._waiting is not None:
                    self._write(self._line())

    def _line(self) -> str:
        elapsed = time.monotonic() - self._start
        usual = self._expected.get(self._waiting) if self._waiting else None
        text = f"{elapsed:7.1f} s  waiting for: {self._waiting}"
        if usual:
            full = min(_BAR, int(_BAR * elapsed / usual))
            text += f"  [{'#' * full}{'.' * (_BAR - full)}] usually at {usual:.0f} s"
        return text[: max(20, shutil.get_terminal_size().columns - 1)]

    def _wipe(self) -> None:
        if self._live:
            # CSI K clears the line.
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        # A terminal that went away must not take the run with it.
        try:
            self._stream.write(text)
            self._stream.flush()
        # ValueError: the stream is closed.
        except (OSError, ValueError):
            self._quiet, self._live = True, False


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
    lines = ["", "deployments"]
    for name, each in rows:
        where = f" on {name}" if several else ""
        lines.append(clean(f"  {each.label}{where} ({each.group}): {each.outcome}"))
    return lines


def _checks(verdict: Verdict) -> list[str]:
    """Return a row for each of the user's own checks."""
    lines = []
    for each in verdict.checks:
        why = f": {one_line(each.reason)}" if each.reason else ""
        lines.append(clean(f"  {each.seconds:6.1f} s  {each.label}  {each.status}{why}"))
    return ["", "checks", *lines] if lines else []


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
    if verdict.subject.stand_ins:
        lines += ["", "stood in for a real cloud"]
        lines += [f"  {clean(each)}" for each in verdict.subject.stand_ins]
    if len(verdict.unmet) > 1:
        lines += ["", "not as expected"]
        lines += [f"  {clean(one_line(each))}" for each in verdict.unmet]
    if verdict.noticed:
        lines += ["", "noticed"]
        lines += [f"  {clean(str(each))}" for each in verdict.noticed]
    if verdict.diagnosis is not None and verdict.diagnosis.evidence:
        lines += ["", "evidence"]
        lines += [f"  {clean(line)[:VALUE_WIDTH]}" for line in verdict.diagnosis.evidence]
    if lines:
        lines.append("")
    # The last line already has one reason of a run that did not pass.
    shown = verdict.reasons if verdict.passed else verdict.reasons[:-1]
    lines += [clean(one_line(reason)) for reason in shown if reason not in verdict.unmet]
    if verdict.status:
        # A plain run has a stack that its user did not name.
        ended = "ended" if verdict.subject.plain else f"stack: {clean(verdict.status)}"
        lines.append(f"{ended} after {verdict.seconds:.0f} s")
    if verdict.artifacts:
        lines.append(f"artifacts: {verdict.artifacts}")
    lines.append(clean(verdict.last_line()))
    return "\n".join(lines) + "\n"
