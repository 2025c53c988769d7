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
    check_files,
    load_cloud_options,
    load_settings,
)
from hotplate.cli.case_run import CaseRun
from hotplate.cli.interrupts import Interrupts
from hotplate.errors import HostError, Outcome
from hotplate.text import clean

if TYPE_CHECKING:
    from hotplate.report.files import ResultFiles
    from hotplate.report.html import RunReport
    from hotplate.verdict.verdict import Verdict

MATRIX = "matrix.html"
"""Beside the folders of the runs: the report of all images of one command."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate test``."""
    parser.add_argument(
        "images",
        type=Path,
        nargs="+",
        metavar="IMAGE",
        help="a qcow2 or raw image; several are tested one after the other",
    )
    add_template_arguments(
        parser, without="a built-in one that deploys a script", expectations=True
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the verdict as JUnit XML")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the verdict as JSON; a list for several images",
    )
    parser.add_argument(
        "--artifacts",
        type=Path,
        metavar="DIR",
        help="where each run leaves a folder with everything it saw",
    )
    add_machine_arguments(parser)
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
    from hotplate.image.inspect import find
    from hotplate.report.files import ResultFiles

    files = ResultFiles(args.junit, args.json, several=len(args.images) > 1)
    files.begin()
    check_files(args)
    images = [find(path) for path in args.images]
    with Interrupts() as interrupts:
        _import_what_writes()
        return TestCommand(args, files, interrupts).run(images)


def _import_what_writes() -> None:
    """Import what leaves a verdict before a signal may come.

    An extension in C (PyYAML's) whose import was ended by one cannot be imported again.
    """
    for name in ("report.html", "report.terminal", "stacks.template", "testbed.qemu_compute"):
        importlib.import_module(f"hotplate.{name}")


class TestCommand:
    """One command: each image gets a folder and a verdict, whatever becomes of its run.

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

    def run(self, images: list[Path]) -> int:
        """Test one image after the other; returns the exit status."""
        for image in images:
            self._test(image)
            if self.runs[-1].verdict.outcome is Outcome.USAGE:
                # It would be the same for all of them.
                break
        if len(images) > 1:
            self._write_matrix()
        return max([each.verdict.exit_status for each in self.runs] + self.problems)

    def _test(self, image: Path) -> None:
        """Test one image, and tell of it."""
        began = time.monotonic()
        case = CaseRun(self.args, image, self.interrupts)
        done = case.run()
        self.runs.append(done)
        self._write_files()
        self._show(done.verdict, time.monotonic() - began)
        case.write_report(done)

    def _write_files(self) -> None:
        """After each image: during the next one the host may be found to lack something."""
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

    def _write_matrix(self) -> None:
        """Leave the report of all images, and say in a line how many passed."""
        from hotplate.report.artifacts import Folder
        from hotplate.report.html import matrix

        folder = Folder(self.settings.artifacts.absolute())
        path = folder.write(MATRIX, matrix(self.runs))
        passed = sum(each.verdict.passed for each in self.runs)
        print(f"{passed} of {len(self.runs)} images passed; all of them: {path or folder.problem}")
