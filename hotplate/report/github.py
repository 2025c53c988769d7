"""A step of a GitHub workflow: annotations and a summary of the verdicts.

While the command runs, GitHub's runner is told to process no workflow command, because guests,
images and templates may write lines that look like one.

Sources: "Workflow commands for GitHub Actions" in GitHub's documentation; the runner's
``ActionCommand.cs`` (escapes), ``ActionCommandManager.cs`` (``stop-commands``) and
``FileCommandManager.cs`` (the limit of a summary).
"""

from __future__ import annotations

import html
import os
import re
import secrets
import string
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, TextIO

from hotplate.errors import sentence_of
from hotplate.report.artifacts import redacted
from hotplate.report.points import PointStatus, all_seconds, points_of
from hotplate.text import clean, clean_line, shortened
from hotplate.verdict.verdict import Verdict, one_line

#: GitHub shows so many annotations of a kind for a step.
PER_KIND = 10
#: Bytes of a step's summary; the runner drops a larger one.
SUMMARY_BYTES = 1024 * 1024
#: Bytes that are kept free for the line about omitted cases.
RESERVE = 1024

MESSAGE_LENGTH = 4000
#: Characters of one cell of a table, or of one line of evidence.
CELL_LENGTH = 400
LINES = 20
ROWS = 200

_MARKS = {True: "\N{WHITE HEAVY CHECK MARK}", False: "\N{CROSS MARK}"}
_PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")


class GithubStep:
    """The step in which a command runs; a context manager around the whole command.

    An error that ends the command becomes an annotation.

    :param stream: gets the workflow commands; the runner reads both output streams.
    :param workspace: the repository, to which the files in annotations are relative.
    :param summary: the file for the step's summary, which other commands of the step write to,
        too; None for no summary.
    """

    def __init__(self, stream: TextIO, *, workspace: Path | None, summary: Path | None) -> None:
        self._stream = stream
        self._workspace = workspace
        self._summary = summary
        self._token = secrets.token_hex(16)
        self._verdicts: Sequence[Verdict] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str], stream: TextIO) -> GithubStep | None:
        """Return the step that the environment describes; None outside of GitHub's runners."""
        if environ.get("GITHUB_ACTIONS") != "true":
            return None
        workspace, summary = (
            Path(environ[name]) if environ.get(name) else None
            for name in ("GITHUB_WORKSPACE", "GITHUB_STEP_SUMMARY")
        )
        return cls(stream, workspace=workspace, summary=summary)

    def __enter__(self) -> Self:
        print(f"::stop-commands::{self._token}", file=self._stream, flush=True)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        lines = [f"::{self._token}::", *annotate(self._verdicts, self._workspace)]
        if isinstance(error, Exception):
            lines.append(_command("error", sentence_of(error), title="hotplate test"))
        print("\n".join(lines), file=self._stream, flush=True)

    def report(self, verdicts: Sequence[Verdict]) -> None:
        """Write the summary of the verdicts; they are annotated when the command ends."""
        self._verdicts = verdicts
        if self._summary is None:
            return
        try:
            with self._summary.open("ab") as stream:
                stream.write(summary(verdicts, SUMMARY_BYTES - stream.tell()).encode())
        except OSError as error:
            print(
                f'hotplate test: the step summary "{self._summary}" cannot be written: '
                f"{error.strerror}",
                file=sys.stderr,
            )


def annotate(verdicts: Sequence[Verdict], workspace: Path | None = None) -> list[str]:
    """Return the workflow commands that annotate a step with its verdicts.

    An error for each verdict that is not passed, a warning for each noticed problem; of each kind
    no more than GitHub shows, the last of which counts the rest.
    """
    errors = [
        _command(
            "error",
            each.last_line(),
            title=f"hotplate: {each.subject}",
            file=_in_workspace(each.subject.template, workspace),
        )
        for each in verdicts
        if not each.passed
    ]
    counted = Counter(str(note) for each in verdicts for note in each.noticed if note.wrong)
    warnings = [
        _command(
            "warning",
            f"{text} (in {count} cases)" if count > 1 else text,
            title="hotplate: noticed",
        )
        for text, count in counted.items()
    ]
    return [*_bounded("error", errors), *_bounded("warning", warnings)]


def _bounded(kind: str, commands: list[str]) -> list[str]:
    if len(commands) <= PER_KIND:
        return commands
    rest = len(commands) - PER_KIND + 1
    more = f"{rest} more: see the summary of this step, or its log"
    return [*commands[: PER_KIND - 1], _command(kind, more, title="hotplate")]


def _command(kind: str, message: str, *, title: str, file: str = "") -> str:
    r"""Return a workflow command.

    >>> _command("error", "50 % of:\nit", title="a,b: c", file="web.yaml")
    '::error file=web.yaml,title=a%2Cb%3A c::50 %25 of:%0Ait'
    """
    properties = {"file": file, "title": shortened(clean_line(title), 200)}
    given = ",".join(f"{name}={_property(text)}" for name, text in properties.items() if text)
    return f"::{kind} {given}::{_data(shortened(redacted(clean(message)), MESSAGE_LENGTH))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _in_workspace(template: str, workspace: Path | None) -> str:
    """Return the path of a template in the repository; "" when it is not a file there."""
    if not template or workspace is None:
        return ""
    path = Path(os.path.realpath(template))
    root = Path(os.path.realpath(workspace))
    return str(path.relative_to(root)) if path.is_relative_to(root) and path.is_file() else ""


# -- the summary ---------------------------------------------------------------------------------


def summary(verdicts: Sequence[Verdict], limit: int) -> str:
    """Return the verdicts in GitHub's Markdown, those that are not passed first.

    It has no outputs of stacks and none of checks, which may hold secrets.

    :param limit: of its bytes in UTF-8; cases that do not fit are left out and counted.
    """
    ordered = sorted(verdicts, key=lambda each: each.passed)
    passed = sum(each.passed for each in verdicts)
    text = f"### hotplate: {passed} of {len(verdicts)} passed\n\n"
    if ordered:
        text += "| | Case | Verdict | Seconds |\n| --- | --- | --- | ---: |\n"
        text += "".join(map(_row, ordered[:ROWS]))
        text += f"| | {len(ordered) - ROWS} more | | |\n\n" if len(ordered) > ROWS else "\n"
    if limit < len(text.encode()) + RESERVE:
        return ""
    size, shown = len(text.encode()), []
    for each in ordered:
        part = "\n".join(_details(each)) + "\n\n"
        size += len(part.encode())
        if size > limit - RESERVE:
            break
        shown.append(part)
    left = len(ordered) - len(shown)
    more = f"{left} more are in the log and the artifacts.\n" if left else ""
    return text + "".join(shown) + more


def _row(verdict: Verdict) -> str:
    cells = (
        _MARKS[verdict.passed],
        _text(str(verdict.subject)),
        _text(verdict.last_line()),
        f"{all_seconds(verdict):.0f}",
    )
    return f"| {' | '.join(cells)} |\n"


def _details(verdict: Verdict) -> Iterator[str]:
    """Yield the lines of a folding part for one verdict."""
    subject, outcome = (
        html.escape(clean_line(text)) for text in (str(verdict.subject), str(verdict.outcome))
    )
    yield f"<details{'' if verdict.passed else ' open'}>"
    yield f"<summary>{subject}: {outcome}</summary>\n"
    points = points_of(verdict)
    yield "| Stage or check | Result | Seconds | Why |\n| --- | --- | ---: | --- |"
    for point in points[:ROWS]:
        name = f"{point.name} on {point.server}" if point.server else point.name
        why = "" if point.status is PointStatus.PASSED else one_line(point.message)
        yield f"| {_text(name)} | {point.status} | {point.seconds:.1f} | {_text(why)} |"
    if len(points) > ROWS:
        yield f"| {len(points) - ROWS} more | | | |"
    if verdict.noticed:
        yield "\nNoticed:\n"
        yield from (f"* {_text(str(each))}" for each in verdict.noticed[:LINES])
    evidence = verdict.diagnosis.evidence if verdict.diagnosis else ()
    if evidence:
        yield "\nEvidence:\n"
        yield _fenced(evidence[:LINES])
    if verdict.artifacts:
        yield f"\nArtifacts: {_text(verdict.artifacts)}"
    yield "\n</details>"


def _text(text: str) -> str:
    r"""Return text as one line of Markdown that shows exactly this text.

    Any ASCII punctuation may be escaped (CommonMark, 2.4), a pipe in a table, too.

    >>> _text("a|b <c>")
    'a\\|b \\<c\\>'
    """
    line = shortened(redacted(clean_line(text)), CELL_LENGTH)
    return _PUNCTUATION.sub(r"\\\1", " ".join(line.split()))


def _fenced(lines: Sequence[str]) -> str:
    """Return a block of code, within a fence that is longer than any in the lines."""
    code = [shortened(redacted(clean_line(line)), CELL_LENGTH) for line in lines]
    longest = max((len(run) for line in code for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([fence, *code, fence])
