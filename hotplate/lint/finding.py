"""What a lint has to say: one finding, what was not looked at, and both together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class LintFinding:
    """One thing that is wrong.

    :param file: the file or the directory that it is about.
    :param rule: a word that stays the same, with the lint it comes from: ``element/links``.
    :param reason: a sentence.
    :param mend: what to do about it.
    :param line: its number in the file, from 1; None when it is about the whole file.
    """

    file: Path
    rule: str
    reason: str
    mend: str
    line: int | None = None

    @property
    def place(self) -> tuple[str, int, str, str]:
        """By what findings are sorted: the file, the line, the rule."""
        return str(self.file), self.line or 0, self.rule, self.reason


@dataclass(frozen=True)
class NotRun:
    """A lint that was not run, as a whole or on something.

    :param lint: its name, and on what.
    :param reason: why, and what to do about it.
    """

    lint: str
    reason: str


@dataclass(frozen=True)
class LintResult:
    """What came of all lints.

    :param findings: sorted by file and line.
    :param elements: the number of elements that were looked at.
    """

    findings: tuple[LintFinding, ...]
    not_run: tuple[NotRun, ...] = ()
    elements: int = 0
