"""The results of a command's cases: printed at once, and kept in its files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TextIO

from hotplate.cases.last import LastCases
from hotplate.cases.request import Request
from hotplate.cases.side_by_side import CaseEnd
from hotplate.cases.table import Case
from hotplate.errors import HostError, Outcome
from hotplate.report.artifacts import Folder, json_line
from hotplate.report.board import Board
from hotplate.report.files import ResultFiles
from hotplate.report.html import RunReport, matrix
from hotplate.report.terminal import summary
from hotplate.text import clean
from hotplate.verdict.verdict import Verdict

#: The report of all cases of one command, beside the folders of the runs.
MATRIX = "matrix.html"


class ResultSink:
    """Prints each result, and writes the files of all; a context manager while cases run.

    :param cases: the cases that run.
    :param last: keeps the results for ``--only-failed``.
    :param several: the command names several cases, however many run.
    :param board: shows cases that run side by side; None when they run in turn.
    :param lines: gets each verdict as a line of JSON; None for no output.
    """

    def __init__(
        self,
        request: Request,
        cases: Sequence[Case],
        *,
        last: LastCases,
        several: bool,
        board: Board | None,
        lines: TextIO | None,
    ) -> None:
        self._request = request
        self._cases = cases
        self.several = several
        self._last = last
        self._board = board
        self._lines = lines
        self._files = ResultFiles(request.junit, request.json, several=several, tap=request.tap)
        self._done: dict[str, RunReport] = {}
        self._problems: list[int] = []
        # Verdicts that the files do not have yet.
        self._unwritten = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Without any case the files are written too, with no verdicts.
        if self._unwritten or not self._cases:
            self._write_files()

    @property
    def runs(self) -> list[RunReport]:
        """The runs that have ended, in the order of the cases."""
        return [self._done[each.name] for each in self._cases if each.name in self._done]

    @property
    def missing(self) -> list[Case]:
        """The cases without a result."""
        return [each for each in self._cases if each.name not in self._done]

    @property
    def exit_status(self) -> int:
        """The highest of the verdicts', and of the errors in writing them."""
        statuses = [each.verdict.exit_status for each in self._done.values()]
        return max(statuses + self._problems, default=0)

    def add(self, end: CaseEnd) -> None:
        """Record the result of a case, and print it."""
        self.record(end.case, end.verdict, end.folder)
        if end.complaint:
            # The traceback of another process may quote a guest: no control sequence reaches the
            # terminal.
            print(clean(end.complaint), file=sys.stderr, end="")
        if self._board:
            self._board.end(end.case.name, self._summary(end))
        else:
            print("".join(f"{line}\n" for line in self._summary(end)), end="", flush=True)
        if end.verdict.outcome is Outcome.USAGE:
            print(f"hotplate test: {clean(end.verdict.reasons[-1])}", file=sys.stderr)

    def record(self, case: Case, verdict: Verdict, folder: Path | None) -> None:
        """Record a verdict, and write the verdicts so far."""
        # A relative link: the page of all cases is beside the folders of the runs.
        page = f"{folder.name}/report.html" if folder else ""
        self._done[case.name] = RunReport(verdict, (), page=page)
        self._unwritten += 1
        if self._lines is not None:
            self._lines.write(json_line(verdict.to_json()))
            # Flushed, so that a reader of the lines gets each verdict when its case ends.
            self._lines.flush()
        if self.several:
            self._last.remember(case, verdict)
        # All files are written again, so of many cases only after each tenth more.
        if 10 * self._unwritten >= len(self._done):
            self._write_files()

    def _write_files(self) -> None:
        """Write the files, usually after each case: the host may fail during the next one."""
        self._unwritten = 0
        try:
            if self.several and self._done:
                self._last.write()
            self._files.write([each.verdict for each in self.runs])
        except HostError as error:
            self._problems.append(error.exit_status)
            print(f"hotplate test: {error}", file=sys.stderr)

    def _summary(self, end: CaseEnd) -> list[str]:
        """Return the lines about a finished case; the last one is the most informative."""
        verdict = end.verdict
        if verdict.outcome is Outcome.USAGE:
            return []
        *lines, last = summary(verdict).splitlines()
        if not self._request.quiet:
            lines.append(f"({end.seconds:.0f} s in all)")
        if self._board:
            last = f"{clean(end.case.name)}: {last}"
            heading = f"case: {clean(end.case.name)}"
            return [f"{last} ({end.seconds:.0f} s)"] if verdict.passed else [heading, *lines, last]
        return [*lines, last]

    def write_matrix(self) -> None:
        """Write the report of all cases, and print how many passed."""
        folder = Folder(self._request.settings.artifacts.absolute())
        path = folder.write(MATRIX, matrix(self.runs))
        passed = sum(each.verdict.passed for each in self.runs)
        several = len({each.image for each in self._cases}) == len(self._cases)
        what = f"{len(self._cases)} {'images' if several else 'cases'}"
        print(f"{passed} of {what} passed; all of them: {path or folder.problem}")
