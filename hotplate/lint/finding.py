"""Results of a lint: findings, skipped lints, and both together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
