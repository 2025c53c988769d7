"""One row of the table of faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hotplate.verdict.facts import Facts
from hotplate.verdict.stages import Stage


@dataclass(frozen=True)
class Rule:
    """One fault.

    :param fault: a stable word for machines, tests and JUnit.
    :param stage: the stage that the diagnosis names, None for the one that is missing.
    :param missing: the first missing stages for which the rule is asked; with ``None`` in it, also
        when all stages were reached and the stack failed all the same.
    :param sees: returns what was seen, as a sentence without its full stop, or "".
    :param advice: what to look at or do.
    :param in_cloud: the same in a run in a cloud, where the advice is about what only a run on this
        host has; "" for the same.
    :param unsent: the same where the deployment sent nothing back, so that there is no file of it;
        "" for the same.
    :param of_stack: Heat's own failure, of which no stage of a server tells.
    """

    fault: str
    stage: Stage | None
    missing: tuple[Stage | None, ...]
    sees: Callable[[Facts], str]
    advice: str
    in_cloud: str = ""
    unsent: str = ""
    of_stack: bool = False

    def __str__(self) -> str:
        return self.fault
