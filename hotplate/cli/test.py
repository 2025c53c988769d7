"""``hotplate test``: boot an image beside a real Heat and give a verdict."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import traceback
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.cli.arguments import (
    add_cloud_arguments,
    add_machine_arguments,
    add_template_arguments,
    check_files,
    load_cloud_options,
    load_settings,
    load_template,
)
from hotplate.cli.interrupts import Interrupts
from hotplate.errors import HostError, Outcome, is_unforeseen
from hotplate.text import clean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hotplate.events.log import EventLog
    from hotplate.report.artifacts import Artifacts
    from hotplate.report.files import ResultFiles
    from hotplate.report.html import RunReport
    from hotplate.report.terminal import Progress
    from hotplate.stacks.template import Template
    from hotplate.trial.trial import Trial
    from hotplate.verdict.stages import Stage
    from hotplate.verdict.verdict import Subject, Verdict

BUILTIN = "the built-in template"
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
        self.options = load_cloud_options(args)
        self.runs: list[RunReport] = []
        self.problems: list[int] = []

    @cached_property
    def template(self) -> Template:
        """What is deployed, the same to each image.

        :raises UsageError: and TemplateError, see :func:`load_template`.
        """
        from hotplate.stacks import template as templates

        return load_template(self.args) or templates.builtin()

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
        """Test one image; its verdict and its artifacts are there whatever happens."""
        from hotplate.events.log import EventLog
        from hotplate.report.artifacts import Artifacts
        from hotplate.report.html import RunReport, report
        from hotplate.verdict.verdict import Subject, of_error

        began = time.monotonic()
        subject = Subject(image=str(image), template=str(self.args.template or BUILTIN))
        artifacts = None
        try:
            artifacts = Artifacts(self.settings.artifacts.absolute(), image.name)
        except HostError as error:
            done = RunReport(of_error(error, subject, EventLog(), now=began), ())
        else:
            artifacts.begin(subject)
            done = self._attempts(image, artifacts, subject)
            self._leave(artifacts, done)
        self.runs.append(done)
        self._write_files()
        self._show(done.verdict, time.monotonic() - began)
        if artifacts is not None:
            artifacts.write("report.html", report(done.verdict, done.events))
            if artifacts.problem is not None:
                print(f"hotplate test: {artifacts.problem}", file=sys.stderr)

    def _attempts(self, image: Path, artifacts: Artifacts, subject: Subject) -> RunReport:
        """Test an image, once more if its machine was lost."""
        done = self._attempt(image, artifacts.folder, subject)
        if done.verdict.outcome is not Outcome.LOST:
            return done
        lost = clean(done.verdict.reasons[-1])
        artifacts.write_json("first-try.json", done.verdict.to_json())
        if not self.args.quiet:
            print(
                "the machine was lost, which says nothing about the image; trying once more "
                f"({clean(lost)})"
            )
        done = self._attempt(image, artifacts.folder / "second-try", subject)
        return replace(done, verdict=after_a_loss(done.verdict, lost))

    def _attempt(self, image: Path, folder: Path, subject: Subject) -> RunReport:
        """Test an image once; what ends that by an exception is a verdict too."""
        from hotplate.events.log import EventLog
        from hotplate.report.artifacts import is_full
        from hotplate.report.html import RunReport
        from hotplate.verdict.verdict import of_error

        events = EventLog()
        ended: BaseException | None = None
        try:
            with self.interrupts.allowed():
                verdict = self._try(image, folder, events)
        except (Exception, KeyboardInterrupt) as error:
            ended = error
            verdict = of_error(error, subject, events, now=time.monotonic(), artifacts=str(folder))
        if verdict.outcome in (Outcome.FAILED, Outcome.ERROR) and is_full(folder):
            full = HostError(
                f'the disk of "{folder}" is full, so nothing is known about the image',
                hint=f"df -h {folder}",
            )
            verdict = of_error(full, subject, events, now=time.monotonic(), artifacts=str(folder))
        elif ended is not None and is_unforeseen(ended):
            _keep_traceback(ended, folder)
        return RunReport(verdict, tuple(events))

    def _try(self, path: Path, folder: Path, events: EventLog) -> Verdict:
        from hotplate.image.inspect import Image
        from hotplate.report.history import History
        from hotplate.trial.trial import Trial

        template = self.template
        image = Image.open(
            path,
            allow_backing=self.settings.allow_backing,
            checksums=self.settings.cache / "checksums",
        )
        history = History(self.settings.cache / "history.json")
        key = f"{image.sha256()}-{template.source}"
        with (
            _progress(self.args, history.expected(key), events) as progress,
            Trial(
                image,
                template,
                settings=self.settings,
                folder=folder,
                events=events,
                say=progress.say,
                on_reached=progress.reached,
                options=self.options,
            ) as trial,
        ):
            progress.say(f"image: {image.path} ({image.layout.value}, {image.format})")
            progress.say(f"template: {template.source}")
            verdict = trial.judge()
            if self.args.keep or (self.args.pause_on_fail and not verdict.passed):
                _pause(trial, verdict)
            if verdict.outcome is Outcome.FAILED:
                trial.take_picture()
        if verdict.passed:
            history.record(key, verdict.stages)
        return verdict

    def _leave(self, artifacts: Artifacts, done: RunReport) -> None:
        """Write what is known; the verdict first."""
        from hotplate.stacks import template as templates
        from hotplate.testbed.qemu_compute import DISK

        artifacts.finish(done.verdict, done.events)
        artifacts.copy(Path(self.args.template or templates.BUILTIN), "template.yaml")
        if "template" in vars(self):
            artifacts.write_json("parameters.json", dict(self.template.parameters))
        if done.verdict.passed and not self.args.keep:
            for disk in artifacts.folder.glob(f"**/servers/*/{DISK}"):
                disk.unlink(missing_ok=True)

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


def _keep_traceback(error: BaseException, folder: Path) -> None:
    """Show where an exception came from, and leave it with the run."""
    from hotplate.report.artifacts import Folder

    text = "".join(traceback.format_exception(error))
    print(text, file=sys.stderr, end="")
    Folder(folder).write("traceback.txt", text)


def _progress(
    args: argparse.Namespace, expected: Mapping[Stage, float], events: EventLog
) -> Progress:
    """Return the line on the terminal that follows one machine."""
    from hotplate.report.terminal import Progress
    from hotplate.verdict.stages import ORDER

    progress = Progress(sys.stdout, stages=ORDER, expected=expected, quiet=args.quiet)
    events.subscribe(lambda event: progress.powered(event.at) if event.kind == "power-on" else None)
    return progress


def _pause(trial: Trial, verdict: Verdict) -> None:
    """Leave the guests up for a person."""
    from hotplate.report.terminal import summary
    from hotplate.session import access

    def say(text: str) -> None:
        print(f"hotplate: {clean(text)}", flush=True)

    if running := [each for each in trial.testbed.servers if each.machine.running]:
        say(summary(verdict).splitlines()[-1])
        access.pause(trial.testbed, running, trial.folder / "doors", say=say)


def after_a_loss(verdict: Verdict, lost: str) -> Verdict:
    """Return the verdict of a second try, which says what became of the first.

    :param lost: why the first one's machine was lost.
    """
    facts = {**verdict.subject.facts, "first try": f"the machine was lost: {lost}"}
    return replace(
        verdict,
        subject=replace(verdict.subject, facts=facts),
        reasons=(f"a first try lost its machine: {lost}", *verdict.reasons),
    )
