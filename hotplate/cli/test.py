"""``hotplate test``: boot an image beside a real Heat and give a verdict."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.cli.arguments import (
    add_cloud_arguments,
    add_machine_arguments,
    add_template_arguments,
    load_cloud_options,
    load_settings,
)
from hotplate.cli.case_run import CaseRun
from hotplate.cli.cases import Case, named
from hotplate.cli.interrupts import Interrupts
from hotplate.errors import HostError, Outcome
from hotplate.text import clean

if TYPE_CHECKING:
    from hotplate.report.files import ResultFiles
    from hotplate.report.html import RunReport
    from hotplate.verdict.verdict import Verdict

MATRIX = "matrix.html"
"""Beside the folders of the runs: the report of all cases of one command."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate test``."""
    parser.add_argument(
        "images",
        type=Path,
        nargs="+",
        metavar="IMAGE",
        help="a qcow2 or raw image; of several, and of several templates, firmwares and data "
        "sources, each is tested with each",
    )
    add_template_arguments(parser, without="a built-in one that deploys a script", several=True)
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the verdict as JUnit XML")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the verdict as JSON; a list for several cases",
    )
    parser.add_argument(
        "--artifacts",
        type=Path,
        metavar="DIR",
        help="where each run leaves a folder with everything it saw",
    )
    add_machine_arguments(parser, several=True)
    add_cloud_arguments(parser)
    parser.add_argument(
        "--patience",
        type=float,
        metavar="SECONDS",
        help="give up after this long without anything new",
    )
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="give up after this long in any case"
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        default=None,
        help="fail a run in which anything was noticed: failed units, tracebacks, refused or "
        "repeated signals, outputs that were not sent",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print the verdict only")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the guests up at the end, and print how to get into them, until Enter",
    )
    parser.add_argument(
        "--pause-on-fail", action="store_true", help="the same, but only if the test fails"
    )


def run(args: argparse.Namespace) -> int:
    """Run it; the exit status is the verdict's, and the highest of several."""
    from hotplate.report.files import ResultFiles

    # What was left by an earlier command goes first, whatever is wrong with this one.
    ResultFiles(args.junit, args.json, several=False).begin()
    cases = named(args)
    files = ResultFiles(args.junit, args.json, several=len(cases) > 1)
    with Interrupts() as interrupts:
        _import_what_writes()
        return TestCommand(args, files, interrupts).run(cases)


def _import_what_writes() -> None:
    """Import what leaves a verdict before a signal may come.

    An extension in C (PyYAML's) whose import was ended by one cannot be imported again.
    """
    for name in ("report.html", "report.terminal", "stacks.template", "testbed.qemu_compute"):
        importlib.import_module(f"hotplate.{name}")


class TestCommand:
    """One command: each case gets a folder and a verdict, whatever becomes of its run.

    :param files: where the verdicts go besides.
    :param interrupts: end what an image is tested by, and nothing that is written about it.
    """

    # Not a class of tests, whatever pytest takes its name for.
    __test__ = False

    def __init__(
        self, args: argparse.Namespace, files: ResultFiles, interrupts: Interrupts
    ) -> None:
        self.args = args
        self.files = files
        self.interrupts = interrupts
        self.settings = load_settings(args)
        # Wrong options are wrong for all of them.
        load_cloud_options(args)
        self.runs: list[RunReport] = []
        self.problems: list[int] = []

    def run(self, cases: list[Case]) -> int:
        """Run one case after the other; returns the exit status."""
        for case in cases:
            if len(cases) > 1:
                print(f"case: {clean(case.name)}", flush=True)
            self._run(case)
            if self.runs[-1].verdict.outcome is Outcome.USAGE:
                # Something in the command is wrong, and to be mended first.
                break
        if len(cases) > 1:
            self._write_matrix(cases)
        return max([each.verdict.exit_status for each in self.runs] + self.problems)

    def _run(self, case: Case) -> None:
        """Run a case, and tell of it."""
        began = time.monotonic()
        case_run = CaseRun(self.args, case, self.interrupts)
        done = case_run.run()
        self.runs.append(done)
        self._write_files()
        self._show(done.verdict, time.monotonic() - began)
        case_run.write_report(done)

    def _write_files(self) -> None:
        """After each case: during the next one the host may be found to lack something."""
        try:
            self.files.write([each.verdict for each in self.runs])
        except HostError as error:
            self.problems.append(error.exit_status)
            print(f"hotplate test: {error}", file=sys.stderr)

    def _show(self, verdict: Verdict, seconds: float) -> None:
        from hotplate.report.terminal import summary

        if verdict.outcome is Outcome.USAGE:
            print(f"hotplate test: {clean(verdict.reasons[-1])}", file=sys.stderr)
            return
        *lines, last = summary(verdict).splitlines()
        if not self.args.quiet:
            lines.append(f"({seconds:.0f} s in all)")
        print("\n".join([*lines, last]), flush=True)

    def _write_matrix(self, cases: list[Case]) -> None:
        """Leave the report of all cases, and say in a line how many passed."""
        from hotplate.report.artifacts import Folder
        from hotplate.report.html import matrix

        folder = Folder(self.settings.artifacts.absolute())
        path = folder.write(MATRIX, matrix(self.runs))
        passed = sum(each.verdict.passed for each in self.runs)
        what = "images" if len({each.image for each in cases}) == len(cases) else "cases"
        print(f"{passed} of {len(cases)} {what} passed; all of them: {path or folder.problem}")
