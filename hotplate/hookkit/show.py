"""A hook's run, or a check of it, as text for people and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hotplate.hookkit.check import lines_document
from hotplate.hookkit.contract import NOT_ASKED, LineResult, LineState
from hotplate.hookkit.findings import OWN_NAMES, HookFinding
from hotplate.hookkit.run import HookReport, HookTask
from hotplate.hookkit.traces import LISTED
from hotplate.hookkit.trials import CheckTask
from hotplate.text import clean, clean_line, shortened

#: The most characters of one text shown to people; JSON has the whole text as Heat gets it.
SHOWN = 16_000

#: The most changed files shown to people; on a busy host most are other programs'.
FILES_SHOWN = 40

#: Of the table of a check, in columns.
WIDTH = 96


def as_document(
    task: HookTask, report: HookReport, listed: Sequence[HookFinding]
) -> dict[str, Any]:
    """Return the run for ``--json``."""
    return {
        "hook": str(task.hook),
        "group": task.group_name,
        "action": task.action,
        "complete": report.status == 0,
        "answer": dict(report.answer),
        "findings": [asdict(each) for each in listed],
        "exit_status": report.exit_status,
        "seconds": report.seconds,
        "log": report.log,
        "left_running": report.left_running,
        "changed": [asdict(each) for each in report.changed[:LISTED]],
        "changed_total": len(report.changed),
        "looked_below": [str(each) for each in task.roots],
        "looked_at_all": report.whole,
    }


def as_text(task: HookTask, report: HookReport, listed: Sequence[HookFinding]) -> str:
    """Return the run as text for people."""
    return "\n".join(_lines(task, report, listed)) + "\n"


def _lines(task: HookTask, report: HookReport, listed: Sequence[HookFinding]) -> Iterator[str]:
    state = "COMPLETE" if report.status == 0 else "FAILED"
    yield f"hook     {task.hook}, group {task.group_name}, {task.action}, {report.seconds:.1f} s"
    yield f"result   {state}, deploy_status_code {report.status}"
    yield from answer_lines(report.answer)
    if report.log:
        yield from _block("the hook's log (its stderr)", report.log)
    if report.left_running:
        yield "note     it left processes running, which were ended; in a guest they stay"
    yield from _changed(task, report)
    if not listed:
        yield "findings none"
    for number, each in enumerate(listed, 1):
        yield f"finding {number}: {clean_line(str(each))}"


def answer_lines(answer: Mapping[str, object]) -> Iterator[str]:
    """Yield a hook's answer: its two texts, and its outputs."""
    for name in ("deploy_stdout", "deploy_stderr"):
        yield from _block(name, str(answer.get(name) or ""))
    for name in sorted(answer.keys() - OWN_NAMES):
        value = answer[name]
        yield from _block(
            f"output {clean_line(name)}",
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False),
        )


def _block(title: str, text: str) -> Iterator[str]:
    if not text:
        yield f"{title}: empty"
        return
    yield f"{title}:"
    shown = shortened(clean(text), SHOWN)
    yield from (f"    {line}" for line in shown.rstrip("\n").split("\n"))


def _changed(task: HookTask, report: HookReport) -> Iterator[str]:
    roots = " ".join(map(str, task.roots))
    if not report.whole:
        roots += " (too much is there to look at all of it)"
    if not report.changed:
        yield f"changed files below {roots}: none"
        return
    yield f"changed files below {roots}:"
    for each in report.changed[:FILES_SHOWN]:
        yield f"    {each.kind.value:8} {clean_line(each.path)}"
    if len(report.changed) > FILES_SHOWN:
        yield f"    and {len(report.changed) - FILES_SHOWN} more"


def check_document(
    task: CheckTask, results: Sequence[LineResult], *, image: Path | None = None
) -> dict[str, Any]:
    """Return the result for ``--json``.

    :param image: the image of the hook.
    """
    return {
        "hook": str(task.hook),
        "image": str(image) if image else None,
        "group": task.group,
        "contract_file": str(task.given.path) if task.given.path else None,
        "passed": not any(each.state is LineState.FAILED for each in results),
        "lines": lines_document(results),
    }


def check_text(task: CheckTask, results: Sequence[LineResult], *, image: Path | None = None) -> str:
    """Return the result as text: a table, and the fix for each line that failed.

    :param image: the image of the hook.
    """
    return "\n".join(_check_lines(task, results, image)) + "\n"


def _check_lines(
    task: CheckTask, results: Sequence[LineResult], image: Path | None
) -> Iterator[str]:
    yield f"hook     {clean_line(str(task.hook))}, group {task.group}"
    if image:
        yield f"image    {clean_line(str(image))}"
    if task.given.path:
        yield f"configs  {clean_line(str(task.given.path))}"
    for each in results:
        if each.reason == NOT_ASKED:
            continue
        yield f"{each.state.value:9}  {each.line.name:13}  {each.line.sentence}"
        if each.state is LineState.NOT_TRIED:
            yield from _indented("reason", each.reason)
        for reason in each.excepted.values():
            yield from _indented("except", reason)
        for fault in each.faults:
            yield from _indented("reason", fault.reason)
        for mend in dict.fromkeys(fault.mend or each.line.mend for fault in each.faults):
            yield from _indented("mend", mend)
    counts = [(state, sum(each.state is state for each in results)) for state in LineState]
    yield ", ".join(f"{count} {state.value}" for state, count in counts)


def _indented(title: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        clean_line(text),
        WIDTH,
        initial_indent=f"{'':11}{title + ':':8}",
        subsequent_indent=" " * 19,
        break_long_words=False,
        break_on_hyphens=False,
    )
