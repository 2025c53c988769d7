"""The contract of hooks, line by line, and the results of checking it.

The contract is that of heat-agents' hooks, documented in :doc:`docs/hooks`, with additional rules
that hotplate's own hooks follow: one JSON object in, one JSON object out, and no input anywhere
else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from hotplate.hookkit import lines
from hotplate.hookkit.trials import ContractFault, HookTrials


@dataclass(frozen=True)
class ContractLine:
    """One requirement of the contract.

    :param name: of the line, for ``--json`` and for a contract file's ``not-tried``.
    :param sentence: the statement that holds when the hook passes.
    :param mend: the fix for a hook that fails, unless the fault has a fix of its own.
    :param trial: tries it, and yields the faults of the hook.
    :param last: try it after the others, whose runs it needs.
    """

    name: str
    sentence: str
    mend: str
    trial: Callable[[HookTrials], Iterator[ContractFault]] = field(repr=False)
    last: bool = False


class LineState(StrEnum):
    """The result of a line."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_TRIED = "not tried"


#: The reason of lines not tried because others were selected with ``--line``.
NOT_ASKED = "not asked for"


@dataclass(frozen=True)
class LineResult:
    """A line and its result.

    :param faults: the reasons that it failed.
    :param reason: the reason that it was not tried.
    :param excepted: reasons of excused faults, by the name of the exception.
    """

    line: ContractLine
    state: LineState
    faults: Sequence[ContractFault] = ()
    reason: str = ""
    excepted: Mapping[str, str] = field(default_factory=dict)


#: The contract, in the order of its table.
LINES = (
    ContractLine(
        "answer",
        "it answers with one JSON object, ends with 0, and does what is asked",
        "print one JSON object with deploy_stdout, deploy_stderr and deploy_status_code to stdout",
        lines.answer,
    ),
    ContractLine(
        "inputs",
        "inputs of each of Heat's types, and empty ones, arrive",
        "take each value as JSON has it; where text is wanted, pass on anything but text as JSON",
        lines.inputs,
    ),
    ContractLine(
        "unicode",
        "quotes, line breaks and characters beyond ASCII in inputs arrive",
        "read stdin and write files as UTF-8 whatever the locale is, and quote every expansion",
        lines.unicode,
    ),
    ContractLine(
        "large-output",
        "a tool may print more than a pipe or a command line holds",
        "read the tool's output while it runs, and hand it on through files, not as an argument",
        lines.large_output,
    ),
    ContractLine(
        "binary-output",
        "a tool may print bytes that are no text",
        "decode with replacement of what is not UTF-8, and let a JSON library write the answer",
        lines.binary_output,
    ),
    ContractLine(
        "failure",
        "a config that fails gives a status that is not 0, and the tool's words",
        "put the tool's exit status in deploy_status_code and its stderr in deploy_stderr; for a "
        "tool that prints on stdout why it fails, give the reason in the contract file",
        lines.failure,
    ),
    ContractLine(
        "missing-tool",
        "without its tool it answers that the tool is missing",
        "look for the tool first, and answer with a status that is not 0 and a sentence naming it",
        lines.missing_tool,
    ),
    ContractLine(
        "log",
        "no input is in its log or its answer unless the config puts it there",
        "log what is done, never what was given: no set -x, no dump of the deployment",
        lines.log,
        last=True,
    ),
    ContractLine(
        "private",
        "no file and no command line that every user can read holds an input",
        "keep inputs in files of mode 0600 or directories of mode 0700, and out of command lines",
        lines.private,
        last=True,
    ),
    ContractLine(
        "outside",
        "nothing is changed outside of its directories and those of its tool",
        "keep files below its setting HEAT_<GROUP>_WORKING; what the tool changes is named in "
        "may-change of the contract file",
        lines.outside,
        last=True,
    ),
    ContractLine(
        "again",
        "a second run of the same deployment, and an UPDATE, succeed",
        "replace what an earlier run has left; do not take it for an error",
        lines.again,
    ),
    ContractLine(
        "at-once",
        "two deployments at once do not mix",
        "put the deployment's id in the name of each file",
        lines.at_once,
    ),
    ContractLine(
        "time-limit",
        "stopped after its time, it leaves no input and no process",
        "end on SIGTERM and remove what holds inputs: try and finally, or a trap on EXIT; start "
        "the tool in the hook's own process group",
        lines.time_limit,
    ),
    ContractLine(
        "interruption",
        "interrupted by SIGTERM, it leaves no input and no process",
        "end on SIGTERM and remove what holds inputs: try and finally, or a trap on EXIT; start "
        "the tool in the hook's own process group",
        lines.interruption,
    ),
)

LINE_NAMES = tuple(line.name for line in LINES)

#: Faults of a tool that its hook cannot prevent: the lines concerned, and a sentence.
#:
#: A fault with a reason in the contract file is excused, and the table shows that.
EXCEPTIONS = {
    "words-on-stdout": (
        ("failure",),
        "the words of a tool that fails are in deploy_stdout, not in deploy_stderr",
    ),
    "own-session": (
        ("time-limit", "interruption"),
        "what the tool has started, in a session of its own, outlives the hook",
    ),
    "ignores-sigterm": (
        ("time-limit", "interruption"),
        "the tool does not end on SIGTERM, and is killed",
    ),
}
