"""Check a hook against the contract, by running it as the runner would in each situation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hotplate.hookkit.contract import (
    EXCEPTIONS,
    LINES,
    NOT_ASKED,
    ContractLine,
    LineResult,
    LineState,
)
from hotplate.hookkit.run import HookTask, check_task, scratch_directory
from hotplate.hookkit.traces import stay_behind
from hotplate.hookkit.trials import CheckTask, ContractFault, HookTrials, NotTried

#: The most characters read back of one reason.
TEXT_LIMIT = 4000


def check(
    task: CheckTask, *, on_line: Callable[[ContractLine], None] = lambda _: None
) -> list[LineResult]:
    """Check a hook against the contract; return a result for each of its lines, in order.

    :param on_line: called with each line before it is tried.
    :raises UsageError: without the hook, or without a config to try it with.
    :raises HostError: when its tool is not on this host.
    """
    check_task(HookTask(task.hook, "", group=task.group, library=task.library))
    task.require_config()
    with scratch_directory() as scratch:
        (scratch / "made").mkdir()
        trials = HookTrials(task, scratch)
        results: dict[str, LineResult] = {}
        # Lines that judge the runs of the others come last.
        for line in sorted(LINES, key=lambda each: each.last):
            if not task.wants(line.name):
                results[line.name] = LineResult(line, LineState.NOT_TRIED, reason=NOT_ASKED)
                continue
            on_line(line)
            # The first line is "answer": a hook that fails it is not worth the other runs.
            usable = not results or results["answer"].state is LineState.PASSED
            results[line.name] = _result(trials, line, usable)
        # No process of a hook, not even one in a session of its own, outlives the check.
        stay_behind(scratch, 0)
    return [results[line.name] for line in LINES]


def _result(trials: HookTrials, line: ContractLine, usable: bool) -> LineResult:
    """Try one line.

    :param usable: False when the hook failed the first line.
    """
    reason = trials.task.given.not_tried.get(line.name, "")
    unusable = "" if usable else 'the hook fails "answer"'
    if reason or (unusable and not line.last):
        return LineResult(line, LineState.NOT_TRIED, reason=reason or unusable)
    try:
        # Several runs may show the same fault.
        faults = tuple(dict.fromkeys(line.trial(trials)))
    except NotTried as error:
        return LineResult(line, LineState.NOT_TRIED, reason=str(error))
    # A line that comes last may have faults all the same, from the runs so far.
    if unusable and not faults:
        return LineResult(line, LineState.NOT_TRIED, reason=unusable)
    given = trials.task.given.exceptions
    excepted = {each.exception: given[each.exception] for each in faults if each.exception in given}
    counted = tuple(each for each in faults if each.exception not in given)
    state = LineState.FAILED if counted else LineState.PASSED
    return LineResult(line, state, counted, excepted=excepted)


def lines_document(results: Sequence[LineResult]) -> list[dict[str, Any]]:
    """Return the results as a list, in the order of the contract."""
    return [
        {
            "name": each.line.name,
            "sentence": each.line.sentence,
            "state": each.state.value,
            "faults": [
                {"reason": fault.reason, "mend": fault.mend or each.line.mend}
                for fault in each.faults
            ],
            "reason": each.reason,
            "excepted": dict(each.excepted),
        }
        for each in results
    ]


def read_lines(listed: object) -> list[LineResult]:
    """Return the results in such a list.

    :param listed: may be from a guest, so it is not trusted.
    :raises ValueError: when it is malformed.
    """
    if not isinstance(listed, list) or len(listed) != len(LINES):
        raise ValueError("it has not one result for each line of the contract")
    results = []
    for line, each in zip(LINES, listed, strict=True):
        if not isinstance(each, dict) or each.get("name") != line.name:
            raise ValueError(f'it has no result for the line "{line.name}"')
        state, faults = LineState(str(each.get("state"))), each.get("faults")
        if not isinstance(faults, list) or (state is LineState.FAILED) != bool(faults):
            raise ValueError(f'the line "{line.name}" is {state} without a reason for that')
        results.append(
            LineResult(
                line,
                state,
                tuple(map(_fault, faults)),
                # Cut, because a guest may send any amount.
                str(each.get("reason", ""))[:TEXT_LIMIT],
                _excepted(each.get("excepted")),
            )
        )
    return results


def _fault(given: object) -> ContractFault:
    if not isinstance(given, dict):
        raise ValueError("a fault is no map")
    return ContractFault(*(str(given.get(name, ""))[:TEXT_LIMIT] for name in ("reason", "mend")))


def _excepted(given: object) -> dict[str, str]:
    if not isinstance(given, dict) or not given.keys() <= EXCEPTIONS.keys():
        raise ValueError("its exceptions are none of the contract's")
    return {name: str(reason)[:TEXT_LIMIT] for name, reason in given.items()}
