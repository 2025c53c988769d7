"""``hotplate test``: boot an image beside a real Heat and give a verdict."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hotplate.cases import os_cloud
from hotplate.cases.case_run import CaseRun, import_what_writes
from hotplate.cases.cluster import scheduler
from hotplate.cases.images import NamedFiles, image_word
from hotplate.cases.last import LastCases
from hotplate.cases.named import named
from hotplate.cases.request import OsCloudRequest, Request
from hotplate.cases.side_by_side import CaseEnd, SideBySide, how_many
from hotplate.cases.table import Case
from hotplate.cli import build
from hotplate.cli.arguments import (
    add_cloud_arguments,
    add_image_argument,
    add_machine_arguments,
    add_template_arguments,
    check_files,
    load_cloud_options,
    load_settings,
    words_of,
)
from hotplate.errors import HostError, Interrupted, Outcome, UsageError
from hotplate.interrupts import Interrupts
from hotplate.shard import Shard
from hotplate.text import clean

if TYPE_CHECKING:
    from hotplate.cases.cluster.on_cluster import OnCluster
    from hotplate.report.board import Board
    from hotplate.report.files import ResultFiles
    from hotplate.report.html import RunReport
    from hotplate.verdict.verdict import Verdict

STREAM = "-"
"""Means the standard output, when given for a file."""

OF_THIS_HOST = {
    "memory": "--memory",
    "cpus": "--cpus",
    "arch": "--arch",
    "accelerator": "--accelerator",
    "wiring": "--wiring",
    "firmwares": "--firmware",
    "datasources": "--datasource",
    "display": "--display",
    "append": "--append",
    "named_images": "--image",
    "environment_dir": "--environment-dir",
    "request_limit": "--request-limit",
    "lift_limits": "--lift-limits",
    "pause_on_fail": "--pause-on-fail",
}
"""Options for this host's machines and cloud, by their names in the arguments."""

MATRIX = "matrix.html"
"""The report of all cases of one command, beside the folders of the runs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate test``."""
    parser.add_argument(
        "images",
        type=image_word,
        nargs="*",
        metavar="IMAGE",
        help="a qcow2 or raw image, or a URL of one; of several, and of several templates, "
        "firmwares and data sources, each is tested with each",
    )
    add_image_argument(parser)
    parser.add_argument(
        "-f",
        "--file",
        type=Path,
        metavar="RUN_FILE",
        help="a YAML file with images, templates, data sources and firmwares; what is named on the "
        "command line takes the place of what it names",
    )
    add_template_arguments(parser, without="the built-in cases of the image's groups", several=True)
    parser.add_argument(
        "--group",
        dest="groups",
        action="append",
        default=[],
        metavar="GROUP[,GROUP...]",
        help="without a template, try these of the image's groups only; with --release, what is "
        "built has these; may be given several times",
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the verdict as JUnit XML")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the verdict as JSON, a list for several cases; - writes each as a line to "
        "the standard output when its case ends, and what else is said to the standard error",
    )
    parser.add_argument(
        "--artifacts",
        type=Path,
        metavar="DIR",
        help="where each run leaves a folder with everything it saw",
    )
    parser.add_argument(
        "--keep-runs",
        type=int,
        metavar="N",
        help="before anything runs, remove the folders of earlier runs but for the newest N; those "
        "of runs that still go on stay",
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
    parser.add_argument(
        "-j",
        "--jobs",
        type=int,
        metavar="N",
        help="run so many cases side by side; by default as many as processors and memory allow",
    )
    parser.add_argument(
        "--on",
        metavar="SCHEDULER",
        help="run the cases on the workers of a Dask cluster (hotplate worker): the address of its "
        "scheduler, dask://HOST:PORT, tcp:// or tls://; -j N then limits how many at a time",
    )
    parser.add_argument(
        "--fail-fast", action="store_true", help="begin no case after one that did not pass"
    )
    parser.add_argument(
        "--only-failed",
        action="store_true",
        help="leave out the cases that passed in the last command that had several",
    )
    parser.add_argument(
        "--shard", metavar="hash:M/N", help="run the M-th of N parts, chosen by the case's name"
    )
    parser.add_argument(
        "--retry-lost",
        type=int,
        default=1,
        metavar="N",
        help="run a case again whose machine was lost, at most N times (1)",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print the verdict only")
    parser.add_argument(
        "--keep",
        dest="keep_guests",
        action="store_true",
        help="leave the guests up at the end, and print how to get into them, until Enter; with "
        "--os-cloud, leave all in the cloud, and end",
    )
    parser.add_argument(
        "--pause-on-fail", action="store_true", help="the same, but only if the test fails"
    )
    _add_release_arguments(parser)
    _add_os_cloud_arguments(parser)


def _add_release_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the images to build, and their content."""
    group = parser.add_argument_group("images that are built for the test")
    group.add_argument(
        "--release",
        dest="releases",
        type=_releases,
        default=[],
        metavar="RELEASE[,RELEASE...]",
        help="build an image of each of these releases, with the groups of --group (script), as "
        "the verb build does, and test it like any other; it is kept in the cache, and built again "
        "when anything is different that goes into it",
    )
    build.add_content_arguments(group)


def _releases(text: str) -> list[str]:
    """Return the releases of a list with commas.

    >>> _releases("bookworm,trixie,bookworm")
    ['bookworm', 'trixie']
    """
    releases = [*dict.fromkeys(each for each in text.split(",") if each)]
    if not releases:
        raise argparse.ArgumentTypeError("expected the name of a release")
    return releases


def _add_os_cloud_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for a test in a cloud."""
    group = parser.add_argument_group("in a cloud of clouds.yaml")
    group.add_argument(
        "--os-cloud",
        metavar="NAME",
        help="run in this cloud, as the openstack command finds it; what is made there is taken "
        "away again",
    )
    group.add_argument(
        "--os-image", metavar="NAME", help="an image of the cloud, in the place of IMAGE"
    )
    group.add_argument(
        "--clean",
        action="store_true",
        help="take away what earlier runs have left in the cloud, and nothing else",
    )
    group.add_argument(
        "--ssh-jump",
        default="",
        metavar="[USER@]HOST[:PORT]",
        help="a jump host, by which servers are reached to look into them; several with commas "
        "between them",
    )
    group.add_argument(
        "--ssh-config", type=Path, metavar="FILE", help="how servers are reached, as for ssh -F"
    )
    group.add_argument(
        "--ssh-user",
        default="",
        metavar="USER",
        help="who logs in to servers; by default root, or whom cloud-init names instead, by sudo",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; return the verdict's exit status, or the highest of several."""
    from hotplate.report.files import ResultFiles

    _check_os_cloud(args)
    if args.clean:
        os_cloud.clean(args.os_cloud, load_settings(args).cache)
        return 0
    streams = str(args.json) == STREAM
    file = None if streams else args.json
    # Remove the files of an earlier command first, whatever errors follow.
    ResultFiles(args.junit, file, several=False).begin()
    request = request_from(args)
    with Interrupts() as interrupts, contextlib.ExitStack() as stack:
        import_what_writes()
        lines = sys.stdout if streams else None
        if streams:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        cases = named(request, stack.enter_context(_images(request, interrupts)))
        files = ResultFiles(args.junit, file, several=len(cases) > 1)
        return TestCommand(request, cases, files=files, interrupts=interrupts, lines=lines).run()


def request_from(args: argparse.Namespace) -> Request:
    """Return the request of the command line.

    Misspelt file names are found before large modules are loaded.

    :raises UsageError: when a file does not exist, no image is named, or a value is impossible.
    """
    from hotplate.image import named as named_images
    from hotplate.image.inspect import find

    check_files([*args.templates, *args.environment, *([args.file] if args.file else [])])
    if not (args.images or args.releases or args.file or args.os_image):
        raise UsageError(
            "no image is named", hint="hotplate test IMAGE, --release RELEASE, or -f RUN_FILE"
        )
    for image in args.images:
        if isinstance(image, Path):
            find(image)
    others = named_images.parse(args.named_images)
    # Imported here: the YAML reader is not needed for --help.
    from hotplate.stacks.template import parse_parameters

    return Request(
        settings=load_settings(args),
        images=tuple(args.images),
        releases=tuple(args.releases),
        run_file=args.file,
        templates=tuple(args.templates),
        environments=tuple(args.environment),
        parameters=parse_parameters(args.parameter),
        groups=words_of(args.groups),
        firmwares=tuple(args.firmwares or ()),
        datasources=tuple(args.datasources or ()),
        named_images=others,
        cloud=load_cloud_options(args),
        build=build.options_of(args),
        os_cloud=_os_cloud_of(args),
        on=args.on or "",
        jobs=args.jobs,
        shard=_shard_of(args.shard) if args.shard else None,
        fail_fast=args.fail_fast,
        only_failed=args.only_failed,
        retry_lost=args.retry_lost,
        quiet=args.quiet,
        keep=args.keep_guests,
        pause_on_fail=args.pause_on_fail,
    )


def _check_os_cloud(args: argparse.Namespace) -> None:
    """Check for conflicting options, before large modules are loaded.

    :raises UsageError: names one.
    """
    if not args.os_cloud:
        for given, option in (
            (args.os_image, "--os-image"),
            (args.clean, "--clean"),
            (args.ssh_jump, "--ssh-jump"),
            (args.ssh_config, "--ssh-config"),
            (args.ssh_user, "--ssh-user"),
        ):
            if given:
                raise UsageError(f"{option} is for a cloud", hint="--os-cloud NAME")
        return
    for name, option in OF_THIS_HOST.items():
        if getattr(args, name, None):
            raise UsageError(f"{option} is for machines of this host, and not for --os-cloud")
    if args.on:
        raise UsageError("--on is for machines of its workers, and not for --os-cloud")
    for given, option in ((args.images, "IMAGE"), (args.releases, "--release")):
        if args.os_image and given:
            raise UsageError(f"--os-image names the image that is tested, and so does {option}")
    if args.clean and (
        args.images or args.releases or args.os_image or args.templates or args.file
    ):
        raise UsageError("--clean tests nothing: it goes with --os-cloud alone")
    if args.ssh_jump and args.ssh_config:
        raise UsageError("--ssh-jump and --ssh-config both say how servers are reached")
    if args.ssh_config is not None and not args.ssh_config.is_file():
        raise UsageError(f'the file "{args.ssh_config}" does not exist or is not a file')


def _os_cloud_of(args: argparse.Namespace) -> OsCloudRequest | None:
    if not args.os_cloud:
        return None
    return OsCloudRequest(
        name=args.os_cloud,
        image=args.os_image or "",
        ssh_jump=args.ssh_jump,
        ssh_config=args.ssh_config,
        ssh_user=args.ssh_user,
    )


def _shard_of(text: str) -> Shard:
    """Return the shard of the option.

    :raises UsageError: when it is malformed.
    """
    try:
        return Shard.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _images(request: Request, interrupts: Interrupts) -> NamedFiles:
    """Return the provider of the images; a signal ends its work."""

    def check() -> None:
        if interrupts.came:
            raise Interrupted(interrupts.came)

    return NamedFiles(
        request.settings.cache,
        elsewhere=bool(request.on),
        check=check,
        interruptible=interrupts.allowed,
    )


class TestCommand:
    """One command: each case gets a folder and a verdict, however its run ends.

    :param files: the additional files for verdicts.
    :param interrupts: end the test of an image, but not the writing of its results.
    :param lines: gets each verdict as a line of JSON; None for no output.
    :ivar cases: the cases to run.
    """

    # Not a test class; pytest collects Test*.
    __test__ = False

    def __init__(
        self,
        request: Request,
        cases: Sequence[Case],
        *,
        files: ResultFiles,
        interrupts: Interrupts,
        lines: TextIO | None = None,
    ) -> None:
        self.request = request
        self.files = files
        self.interrupts = interrupts
        self.lines = lines
        self.settings = request.settings
        self.several = len(cases) > 1
        self.last = LastCases(self.settings.artifacts.absolute())
        self.cases = self._chosen(cases)
        self.address = scheduler.address_of(request.on) if request.on else ""
        self.jobs, self.why = self._how_many()
        self.done: dict[str, RunReport] = {}
        self.problems: list[int] = []
        self.written = 0

    @property
    def runs(self) -> list[RunReport]:
        """The runs that have ended, in the order of the cases."""
        return [self.done[each.name] for each in self.cases if each.name in self.done]

    def run(self) -> int:
        """Run the cases; return the exit status."""
        self._remove_old_runs()
        if not self.cases:
            self._write_files()
        else:
            try:
                self._run_cases()
            finally:
                if self.written < len(self.done):
                    self._write_files()
        if self.several and self.cases:
            self._write_matrix()
        statuses = [each.verdict.exit_status for each in self.done.values()]
        return max(statuses + self.problems, default=0)

    def _run_cases(self) -> None:
        if self.jobs > 1 or self.address:
            self._side_by_side()
        else:
            self._one_by_one()
        self._leave_out([each for each in self.cases if each.name not in self.done])

    def _remove_old_runs(self) -> None:
        """Remove old runs, once a command: none of its own cases goes, however many there are."""
        from hotplate.report.old_runs import remove_old_runs

        if self.settings.keep_runs:
            for problem in remove_old_runs(self.settings.artifacts, self.settings.keep_runs):
                print(f"hotplate test: {clean(problem)}", file=sys.stderr)

    def _chosen(self, cases: Sequence[Case]) -> Sequence[Case]:
        """Return the cases to run, and print the reason that others do not."""
        chosen, why = cases, []
        if shard := self.request.shard:
            chosen = [each for each in cases if shard.has(each.name)]
            why.append(f"this is the shard hash:{shard.part}/{shard.parts}")
        if self.request.only_failed:
            chosen = self.last.failed(chosen)
            others = "the others passed in the last run"
            why.append(others if self.last.there else "no earlier run is known")
        if why and not self.request.quiet:
            print(f"{len(chosen)} of {len(cases)} cases run; {'; '.join(why)}", flush=True)
        return chosen

    def _is_last(self, verdict: Verdict) -> bool:
        """Return True when no further case is to be started after this verdict."""
        # After a usage error the command itself has to be fixed first.
        stops = self.request.fail_fast and not verdict.passed
        return stops or verdict.outcome is Outcome.USAGE

    def _how_many(self) -> tuple[int, str]:
        """Return how many cases run at a time, and the reason.

        :raises UsageError: for ``-j`` below 1, and when ``--keep`` or ``--pause-on-fail`` would
            wait for the user with several cases at a time, or on workers.
        """
        waits = (self.request.keep and not self.request.os_cloud) or self.request.pause_on_fail
        if waits and self.address:
            raise UsageError(
                "--keep and --pause-on-fail leave guests up on this host, not on workers"
            )
        if self.request.jobs is None:
            if self.address:
                return 0, ""
            # The capacity of a cloud is not visible from here.
            if waits or self.request.os_cloud:
                return 1, ""
            return how_many(len(self.cases), self.settings)
        if self.request.jobs < 1:
            raise UsageError(f"-j {self.request.jobs} is too small; expected cases, at least 1")
        if waits and self.request.jobs > 1:
            raise UsageError("--keep and --pause-on-fail wait for you at each case", hint="-j 1")
        return min(self.request.jobs, len(self.cases)), "by -j"

    def _one_by_one(self) -> None:
        for case in self.cases:
            if self.several:
                print(f"case: {clean(case.name)}", flush=True)
            if self._is_last(self._run_here(case)):
                break

    def _side_by_side(self) -> None:
        from hotplate.report.board import Board

        board = Board(sys.stdout, quiet=self.request.quiet)
        if not self.request.quiet:
            board.say([self._announcement()])

        def on_end(end: CaseEnd) -> None:
            self._remember(end.case, end.verdict, end.folder)
            if end.complaint:
                print(clean(end.complaint), file=sys.stderr, end="")
            board.end(end.case.name, self._lines(end))
            self._say_usage(end.verdict)
            if self._is_last(end.verdict):
                runner.more = False

        runner = self._runner(board, on_end)
        runner.run(self.cases)

    def _announcement(self) -> str:
        if not self.address:
            return f"{len(self.cases)} cases, {self.jobs} at a time ({self.why})"
        most = f", at most {self.jobs} at a time" if self.jobs else ""
        return f'{len(self.cases)} cases on the workers of "{self.address}"{most}'

    def _runner(self, board: Board, on_end: Callable[[CaseEnd], None]) -> SideBySide | OnCluster:
        if not self.address:
            return SideBySide(
                self.request, self.jobs, interrupts=self.interrupts, board=board, on_end=on_end
            )
        # Imported here: Dask is an extra, and slow to load.
        from hotplate.cases.cluster.on_cluster import OnCluster

        if note := scheduler.warning(self.address):
            print(f"hotplate test: {note}", file=sys.stderr)
        return OnCluster(
            self.request,
            self.address,
            jobs=self.jobs,
            interrupts=self.interrupts,
            board=board,
            on_end=on_end,
        )

    def _leave_out(self, cases: Sequence[Case]) -> None:
        """Name the cases that were not started; after a signal each gets a verdict."""
        for case in cases if self.interrupts.came else ():
            case_run = CaseRun(self.request, case, self.interrupts)
            done = case_run.run()
            self._remember(case, done.verdict, case_run.folder)
            case_run.write_report(done)
        if cases and not self.request.quiet:
            print(f"not begun: {', '.join(clean(each.name) for each in cases)}")

    def _run_here(self, case: Case) -> Verdict:
        """Run a case in this process, and print its result."""
        began = time.monotonic()
        case_run = CaseRun(self.request, case, self.interrupts)
        done = case_run.run()
        self._remember(case, done.verdict, case_run.folder)
        end = CaseEnd(case, done.verdict, case_run.folder, time.monotonic() - began)
        print("".join(f"{line}\n" for line in self._lines(end)), end="", flush=True)
        self._say_usage(done.verdict)
        case_run.write_report(done)
        return done.verdict

    def _remember(self, case: Case, verdict: Verdict, folder: Path | None) -> None:
        """Record a verdict, and write the verdicts so far."""
        from hotplate.report.artifacts import json_line
        from hotplate.report.html import RunReport

        page = f"{folder.name}/report.html" if folder else ""
        self.done[case.name] = RunReport(verdict, (), page=page)
        if self.lines is not None:
            self.lines.write(json_line(verdict.to_json()))
            self.lines.flush()
        if self.several:
            self.last.remember(case, verdict)
        # All files are written again, so of many cases only after each tenth more.
        if len(self.done) > 1.1 * self.written:
            self._write_files()

    def _write_files(self) -> None:
        """Write the files, usually after each case: the host may fail during the next one."""
        self.written = len(self.done)
        try:
            if self.several and self.done:
                self.last.write()
            self.files.write([each.verdict for each in self.runs])
        except HostError as error:
            self.problems.append(error.exit_status)
            print(f"hotplate test: {error}", file=sys.stderr)

    def _lines(self, end: CaseEnd) -> list[str]:
        """Return the lines about a finished case; the last one is the most informative."""
        from hotplate.report.terminal import summary

        verdict = end.verdict
        if verdict.outcome is Outcome.USAGE:
            return []
        *lines, last = summary(verdict).splitlines()
        if not self.request.quiet:
            lines.append(f"({end.seconds:.0f} s in all)")
        if self.jobs > 1 or self.address:
            last = f"{clean(end.case.name)}: {last}"
            heading = f"case: {clean(end.case.name)}"
            return [f"{last} ({end.seconds:.0f} s)"] if verdict.passed else [heading, *lines, last]
        return [*lines, last]

    def _say_usage(self, verdict: Verdict) -> None:
        if verdict.outcome is Outcome.USAGE:
            print(f"hotplate test: {clean(verdict.reasons[-1])}", file=sys.stderr)

    def _write_matrix(self) -> None:
        """Write the report of all cases, and print how many passed."""
        from hotplate.report.artifacts import Folder
        from hotplate.report.html import matrix

        folder = Folder(self.settings.artifacts.absolute())
        path = folder.write(MATRIX, matrix(self.runs))
        passed = sum(each.verdict.passed for each in self.runs)
        several = len({each.image for each in self.cases}) == len(self.cases)
        what = f"{len(self.cases)} {'images' if several else 'cases'}"
        print(f"{passed} of {what} passed; all of them: {path or folder.problem}")
