"""Results of a lint, and their formats: text, JSON and GitHub's workflow commands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hotplate.text import clean_line

#: Version of the JSON, raised when a key is removed or changes its meaning.
FORMAT = 1


@dataclass(frozen=True)
class LintFinding:
    """One mistake.

    :param file: the file or directory at fault.
    :param rule: a stable word, prefixed by its lint: ``element/links``.
    :param reason: a sentence.
    :param mend: the fix.
    :param line: its number in the file, from 1; None for the whole file.
    """

    file: Path
    rule: str
    reason: str
    mend: str
    line: int | None = None

    @property
    def place(self) -> tuple[str, int, str, str]:
        """Return the key by which findings are sorted: file, line, rule, reason."""
        return str(self.file), self.line or 0, self.rule, self.reason


@dataclass(frozen=True)
class NotRun:
    """A lint that was not run, as a whole or on one target.

    :param lint: its name, and the target.
    :param reason: the reason, and the fix.
    """

    lint: str
    reason: str


@dataclass(frozen=True)
class LintResult:
    """Result of all lints.

    :param findings: sorted by file and line.
    :param elements: the number of elements checked.
    """

    findings: tuple[LintFinding, ...]
    not_run: tuple[NotRun, ...] = ()
    elements: int = 0


def as_document(result: LintResult, base: Path) -> dict[str, Any]:
    """Return the result for ``--format json``; paths below ``base`` are relative to it."""
    return {
        "format": FORMAT,
        "elements": result.elements,
        "findings": [
            {
                "file": _name(each.file, base),
                "line": each.line,
                "rule": each.rule,
                "reason": each.reason,
                "mend": each.mend,
            }
            for each in result.findings
        ],
        "not_run": [asdict(each) for each in result.not_run],
    }


def as_text(result: LintResult, base: Path) -> str:
    """Return the result as text; paths below ``base`` are relative to it."""
    return "\n".join(_lines(result, base)) + "\n"


def _lines(result: LintResult, base: Path) -> Iterator[str]:
    for each in result.findings:
        line = f":{each.line}" if each.line else ""
        place = f"{_name(each.file, base)}{line}"
        yield clean_line(f"{place}: {each.reason} [{each.rule}]")
        yield clean_line(f"    mend: {each.mend}")
    for one in result.not_run:
        yield clean_line(f"not run: {one.lint}: {one.reason}")
    yield f"{_count(result.findings)} in {result.elements} elements"


def _count(findings: tuple[LintFinding, ...]) -> str:
    return "1 finding" if len(findings) == 1 else f"{len(findings) or 'no'} findings"


def as_github(result: LintResult, base: Path) -> str:
    """Return the result as workflow commands, which GitHub shows beside the lines of a change.

    The format is that of GitHub's "Workflow commands for GitHub Actions".

    :param base: the checkout; paths below it are relative to it.
    """
    lines = [
        f"::error file={_property(_name(each.file, base))}"
        + (f",line={each.line}" if each.line else "")
        + f",title={_property(each.rule)}::{_data(f'{each.reason} Mend: {each.mend}')}"
        for each in result.findings
    ]
    lines += [f"::notice::{_data(f'not run: {one.lint}: {one.reason}')}" for one in result.not_run]
    return "".join(f"{line}\n" for line in lines)


def _data(text: str) -> str:
    """Return a message quoted for a workflow command, in one line."""
    return clean_line(text).replace("%", "%25")


def _property(text: str) -> str:
    # Percent signs are quoted before: the other two quotations contain one.
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _name(file: Path, base: Path) -> str:
    return str(file.relative_to(base)) if file.is_relative_to(base) else str(file)
