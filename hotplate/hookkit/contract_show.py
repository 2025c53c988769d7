"""The result of a check as text for people, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hotplate.hookkit.check import CheckTask
from hotplate.hookkit.contract import NOT_ASKED, LineResult, LineState
from hotplate.hookkit.contract_json import lines_document
from hotplate.text import clean_line

WIDTH = 96


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
    return "\n".join(_lines(task, results, image)) + "\n"


def _lines(task: CheckTask, results: Sequence[LineResult], image: Path | None) -> Iterator[str]:
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
    yield _sum(results)


def _indented(title: str, text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        clean_line(text),
        WIDTH,
        initial_indent=f"{'':11}{title + ':':8}",
        subsequent_indent=" " * 19,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _sum(results: Sequence[LineResult]) -> str:
    counts = [(state, sum(each.state is state for each in results)) for state in LineState]
    return ", ".join(f"{count} {state.value}" for state, count in counts)
