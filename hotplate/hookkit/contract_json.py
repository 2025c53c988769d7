"""Write the results of a check as JSON, and read them back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hotplate.hookkit.contract import EXCEPTIONS, LINES, ContractFault, LineResult, LineState

TEXT_LIMIT = 4000
"""The most characters read back of one reason."""


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
