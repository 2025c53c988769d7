"""The faults in a hook's behaviour, one sentence each, with the line concerned."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hotplate.hookkit.run import HookReport, HookTask
from hotplate.text import clean_line, shortened

#: The keys of each answer, besides the declared outputs.
OWN_NAMES = {"deploy_stdout", "deploy_stderr", "deploy_status_code"}

#: The most characters quoted of a line.
QUOTED = 200

#: An input shorter than this is hidden in a quotation only where it is a whole word.
SHORT = 4

_FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+)')
# dash writes "FILE: 3: ...", and bash "FILE: line 3: ...".
_SHELL = re.compile(r"^(?P<file>[^:]+): (?:line )?(?P<line>\d+): ")
_TRACEBACK = "Traceback (most recent call last):"


class FindingKind(StrEnum):
    """The kind of a finding."""

    NOT_EXECUTABLE = "not-executable"
    NO_INTERPRETER = "no-interpreter"
    NOT_STARTED = "not-started"
    TIMEOUT = "timeout"
    CRASH = "crash"
    NO_ANSWER = "no-answer"
    NOT_JSON = "not-json"
    TEXT_BESIDE_JSON = "text-beside-json"
    NO_STATUS = "no-status"
    EXIT_STATUS = "exit-status"
    OUTPUT_MISSING = "output-missing"
    OUTPUT_UNDECLARED = "output-undeclared"


@dataclass(frozen=True)
class HookFinding:
    """A fault that the author of a hook has to fix.

    :param sentence: for people; without the value of an input.
    :param place: the hook's file, or ``stdout``; empty when there is no line.
    :param line: from 1; 0 when there is none.
    """

    kind: FindingKind
    sentence: str
    place: str = ""
    line: int = 0

    def __str__(self) -> str:
        where = f"{self.place}, line {self.line}: " if self.line else ""
        return f"{where}{self.sentence}"


def findings(task: HookTask, report: HookReport) -> list[HookFinding]:
    """Return the faults in a hook's behaviour; a failed tool is none, as it has its status."""
    if not report.started:
        return [_not_started(task, report)]
    listed = [*_ended(task, report)]
    if report.exit_status is not None:
        listed += _about_stdout(task, report)
    if report.names is not None:
        listed += _about_answer(task, report)
    return listed


def _not_started(task: HookTask, report: HookReport) -> HookFinding:
    path = str(task.hook)
    if not os.access(path, os.X_OK):
        return HookFinding(
            FindingKind.NOT_EXECUTABLE, f'the hook is not executable: chmod 0755 "{path}"'
        )
    first = _first_line(task.hook)
    if first.startswith("#!"):
        return _without_interpreter(path, first)
    if not first.startswith("\x7fELF"):
        return HookFinding(
            FindingKind.NO_INTERPRETER,
            'it does not begin with "#!" and an interpreter, so the kernel cannot run it',
            path,
            1,
        )
    reason = str(report.answer["deploy_stderr"])
    return HookFinding(FindingKind.NOT_STARTED, f"it cannot be started: {_quoted(task, reason)}")


def _without_interpreter(path: str, first: str) -> HookFinding:
    # As the kernel reads it: a carriage return is a part of the name.
    interpreter = first[2:].lstrip(" \t").partition(" ")[0].partition("\t")[0]
    sentence = f"its interpreter {json.dumps(interpreter)} cannot be run"
    if not interpreter.strip():
        sentence = 'there is no interpreter after "#!"'
    elif not Path(interpreter).exists():
        sentence = f"its interpreter {json.dumps(interpreter)} does not exist on this host"
    return HookFinding(FindingKind.NO_INTERPRETER, sentence + _line_ends(first), path, 1)


def _first_line(hook: Path) -> str:
    try:
        with hook.open("rb") as stream:
            # More than the kernel reads of it (BINPRM_BUF_SIZE, 256 bytes).
            return stream.read(4096).partition(b"\n")[0].decode("utf-8", "replace")
    except OSError:
        return ""


def _line_ends(first: str) -> str:
    """Return a clause about wrong line ends, by a hook's first line; empty when right."""
    return "; its lines end with CR LF, where LF alone is expected" if first.endswith("\r") else ""


def _ended(task: HookTask, report: HookReport) -> Iterator[HookFinding]:
    """Yield the faults in the end of its process."""
    status = report.exit_status
    if status is None:
        yield HookFinding(
            FindingKind.TIMEOUT,
            f"it was stopped because it took too long, after {report.seconds:.0f} seconds",
        )
        return
    if not status:
        return
    # Above 128 a signal has ended it, as shells and the runner report that.
    if status > 128 or _TRACEBACK in report.log or report.names is None:
        last, place, line = _last_words(task, report.log)
        how = _signal(status - 128) if status > 128 else f"exit status {status}"
        words = f'and last wrote "{_quoted(task, last)}"' if last else "and wrote nothing to stderr"
        if report.names is None and (line_ends := _line_ends(_first_line(task.hook))):
            words += line_ends
            place, line = str(task.hook), 1
        yield HookFinding(FindingKind.CRASH, f"it crashed: it ended by {how}, {words}", place, line)
    else:
        yield HookFinding(
            FindingKind.EXIT_STATUS,
            f"it answered, but ended with exit status {status}; expected 0 with every answer",
        )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_words(task: HookTask, log: str) -> tuple[str, str, int]:
    """Return the last line of a hook's stderr, and the line number in the hook that it names."""
    lines = [each for each in log.splitlines() if each.strip()]
    if not lines:
        return "", "", 0
    hook = str(task.hook.absolute())
    own = 0
    for each in lines:
        # The last frame in the hook itself; those below it are of libraries.
        match = _FRAME.match(each)
        if match and match["file"] == hook:
            own = int(match["line"])
    match = _SHELL.match(lines[-1])
    if not own and match and match["file"] == hook:
        own = int(match["line"])
    return lines[-1], str(task.hook) if own else "", own


#: The faults of a line of stdout, by ``report.problem``.
_STDOUT = {
    "not-object": (
        FindingKind.NOT_JSON,
        "the answer is JSON, but not an object with deploy_status_code",
    ),
    "not-json": (
        FindingKind.NOT_JSON,
        'the answer is no JSON, so all of it is taken as deploy_stdout: "{}"',
    ),
    "text-beside-json": (
        FindingKind.TEXT_BESIDE_JSON,
        "text beside the JSON answer, so all of it is taken as deploy_stdout and the status in "
        'it is ignored: "{}"',
    ),
}


def _about_stdout(task: HookTask, report: HookReport) -> Iterator[HookFinding]:
    """Yield the faults of its whole stdout, by ``report.problem``."""
    if report.problem == "silent" and not report.exit_status:
        yield HookFinding(
            FindingKind.NO_ANSWER, "it printed nothing to stdout; expected one JSON object"
        )
    elif report.problem == "large":
        yield HookFinding(FindingKind.NOT_JSON, "its answer is too large to be read")
    elif report.problem in _STDOUT:
        kind, sentence = _STDOUT[report.problem]
        quoted = _quoted(task, report.text)
        yield HookFinding(kind, sentence.format(quoted), "stdout", report.line)


def _about_answer(task: HookTask, report: HookReport) -> Iterator[HookFinding]:
    """Yield the faults in its answer, an object."""
    names = set(report.names or ())
    if "deploy_status_code" not in names:
        yield HookFinding(
            FindingKind.NO_STATUS,
            "the answer has no deploy_status_code, so the deployment fails",
        )
    elif "without a usable deploy_status_code" in str(report.answer["deploy_stderr"]):
        yield HookFinding(
            FindingKind.NO_STATUS,
            "the deploy_status_code of the answer is no number, so the deployment fails",
        )
    for name in task.outputs:
        if name not in names:
            yield HookFinding(
                FindingKind.OUTPUT_MISSING,
                f'the declared output "{clean_line(name)}" is not in the answer: it was not '
                "written, or not sent",
            )
    for name in sorted(names - OWN_NAMES - set(task.outputs)):
        yield HookFinding(
            FindingKind.OUTPUT_UNDECLARED,
            f'the output "{_quoted(task, name)}" is in the answer, but was not declared, so the '
            "runner drops it",
        )


def _quoted(task: HookTask, text: str) -> str:
    """Return one line to quote, without the values of inputs."""
    line = text.strip().partition("\n")[0]
    for name, value in _by_length(task.inputs):
        if len(value) < SHORT:
            line = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", f"<{name}>", line)
        else:
            line = line.replace(value, f"<{name}>")
    return shortened(clean_line(line), QUOTED)


def _by_length(inputs: Mapping[str, object]) -> Iterable[tuple[str, str]]:
    """Return names and values, the longest first: a short one may be a part of it.

    Includes their forms in JSON and in Python's representation, and each line of a text.
    """
    forms = {
        (name, form)
        for name, given in inputs.items()
        for value in [given if isinstance(given, str) else json.dumps(given)]
        # As they are, and escaped as in JSON and in Python's repr(), without the quotes.
        for whole in (value, json.dumps(value)[1:-1], repr(value)[1:-1])
        for form in (whole, *whole.split("\n"))
        if form.strip()
    }
    return sorted(forms, key=lambda each: (-len(each[1]), each))
