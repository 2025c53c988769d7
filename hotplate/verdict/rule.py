"""A row of the table of faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hotplate.verdict.facts import Facts
from hotplate.verdict.stages import Stage


@dataclass(frozen=True)
class Rule:
    """A fault and its detector.

    :param fault: a stable word for machines, tests and JUnit.
    :param stage: the stage that the diagnosis names, None for the one that is missing.
    :param missing: the first missing stages for which the rule is asked; with ``None`` in it, also
        when all stages were reached and the stack failed all the same.
    :param sees: returns the symptom, as a sentence without its full stop, or "".
    :param advice: where to look, or how to fix it.
    :param in_cloud: the same for a run in a cloud, where ``advice`` applies only to a run on this
        host; "" for the same.
    :param unsent: the same where the deployment sent no output, so that there is no file of it;
        "" for the same.
    :param of_stack: a failure of Heat's own, independent of any server's stage.
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
