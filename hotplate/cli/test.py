"""``hotplate test``: boot an image beside a real Heat and give a verdict."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate.cli.arguments import (
    add_cloud_arguments,
    add_machine_arguments,
    add_template_arguments,
    load_cloud_options,
    load_settings,
    load_template,
)
from hotplate.errors import HotplateError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hotplate.cloud.options import CloudOptions
    from hotplate.events.log import EventLog
    from hotplate.image.inspect import Image
    from hotplate.report.html import RunReport
    from hotplate.report.terminal import Progress
    from hotplate.settings import Settings
    from hotplate.stacks.template import Template
    from hotplate.trial.trial import Trial
    from hotplate.verdict.stages import Stage
    from hotplate.verdict.verdict import Verdict

MATRIX = "matrix.html"
"""Beside the folders of the runs: the report of all images of one command."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of ``hotplate test``."""
    parser.add_argument(
        "images",
        type=Path,
        nargs="+",
        metavar="IMAGE",
        help="a qcow2 or raw image; several are tested one after the other",
    )
    add_template_arguments(parser, without="a built-in one that deploys a script")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the verdict as JUnit XML")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the verdict as JSON; a list of them for several images",
    )
    parser.add_argument("--artifacts", type=Path, metavar="DIR", help="where runs leave everything")
    add_machine_arguments(parser)
    add_cloud_arguments(parser)
    parser.add_argument(
        "--patience",
        type=float,
        metavar="SECONDS",
        help="give up after that long without anything new",
    )
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="give up after that long in any case"
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="print the verdict only")
    parser.add_argument(
        "--keep",
        action="store_true",
        help="then leave the guests up and print how to look into them, until Enter",
    )
    parser.add_argument(
        "--pause-on-fail", action="store_true", help="the same, if the test does not pass"
    )


def run(args: argparse.Namespace) -> int:
    """Run it; the exit status is the verdict's, and the worst of several."""
    settings = load_settings(args)
    options = load_cloud_options(args)
    for file in (args.junit, args.json):
        if file is not None and not file.absolute().parent.is_dir():
            raise UsageError(f'"{file}" cannot be written: there is no such directory')

    from hotplate.image.inspect import Image
    from hotplate.report import junit
    from hotplate.report.html import RunReport
    from hotplate.stacks import template as templates

    template = load_template(args) or templates.builtin()
    images = [Image.open(path) for path in args.images]
    runs: list[RunReport] = []
    for image in images:
        verdict, events = _test(args, image, template, settings, options)
        runs.append(RunReport(verdict, tuple(events)))
        # After each, for the next one may find that the host lacks something.
        verdicts = [each.verdict for each in runs]
        if args.junit is not None:
            _write(args.junit, junit.to_xml(verdicts))
        if args.json is not None:
            told = [each.to_json() for each in verdicts]
            document = json.dumps(
                told if len(images) > 1 else told[0], indent=2, ensure_ascii=False, default=str
            )
            _write(args.json, document.encode() + b"\n")
    if len(runs) > 1:
        _write_matrix(runs, settings.artifacts.absolute() / MATRIX)
    return max(each.exit_status for each in verdicts)


def _test(
    args: argparse.Namespace,
    image: Image,
    template: Template,
    settings: Settings,
    options: CloudOptions,
) -> tuple[Verdict, EventLog]:
    """Test one image, leave its artefacts and print its verdict."""
    from hotplate.errors import Outcome
    from hotplate.events.log import EventLog
    from hotplate.paths import cache_dir
    from hotplate.report.artifacts import Artefacts
    from hotplate.report.history import History
    from hotplate.report.html import report
    from hotplate.report.terminal import summary
    from hotplate.stacks import template as templates

    began = time.monotonic()
    artefacts = Artefacts(settings.artifacts.absolute(), image.path.name)
    history = History(cache_dir() / "history.json")
    key = f"{image.sha256()}-{template.source}"

    def attempt(folder: Path) -> tuple[Verdict, EventLog]:
        events = EventLog()
        with _progress(args, history.expected(key), events) as progress:
            progress.say(f"image: {image.path} ({image.layout.value}, {image.format})")
            progress.say(f"template: {template.source}")
            return _try(args, image, template, settings, options, folder, events, progress), events

    verdict, events = attempt(artefacts.folder)
    if verdict.outcome is Outcome.LOST:
        lost = verdict.reasons[-1]
        artefacts.write_json("first-try.json", verdict.to_json())
        if not args.quiet:
            print(f"the machine was lost, which says nothing of the image; once more ({lost})")
        verdict, events = attempt(artefacts.folder / "second-try")
        verdict = after_a_loss(verdict, lost)
    if verdict.passed:
        history.record(key, verdict.stages)
    artefacts.copy(Path(args.template or templates.BUILTIN), "template.yaml")
    artefacts.write_json("parameters.json", dict(template.parameters))
    artefacts.finish(verdict, events, report=report(verdict, events))
    *told, last = summary(verdict).splitlines()
    if not args.quiet:
        told.append(f"({time.monotonic() - began:.0f} s in all)")
    print("\n".join([*told, last]), flush=True)
    if artefacts.problem is not None:
        print(f"hotplate test: {artefacts.problem}", file=sys.stderr)
    return verdict, events


def _write_matrix(runs: Sequence[RunReport], path: Path) -> None:
    """Leave the report of all images, and say in a line how many passed."""
    from hotplate.report.html import matrix

    _write(path, matrix(runs).encode())
    passed = sum(each.verdict.passed for each in runs)
    print(f"{passed} of {len(runs)} images passed; all of them: {path}")


def _progress(
    args: argparse.Namespace, expected: Mapping[Stage, float], events: EventLog
) -> Progress:
    """The line on the terminal that follows one machine."""
    from hotplate.report.terminal import Progress
    from hotplate.verdict.stages import ORDER

    progress = Progress(sys.stdout, stages=ORDER, expected=expected, quiet=args.quiet)
    events.subscribe(lambda event: progress.powered(event.at) if event.kind == "power-on" else None)
    return progress


def _try(
    args: argparse.Namespace,
    image: Image,
    template: Template,
    settings: Settings,
    options: CloudOptions,
    folder: Path,
    events: EventLog,
    progress: Progress,
) -> Verdict:
    from hotplate.trial.trial import Trial

    with Trial(
        image,
        template,
        settings=settings,
        folder=folder,
        events=events,
        say=progress.say,
        on_reached=progress.reached,
        options=options,
    ) as trial:
        verdict = trial.judge()
        if args.keep or (args.pause_on_fail and not verdict.passed):
            _pause(trial, verdict)
        trial.take_picture()
        return verdict


def _pause(trial: Trial, verdict: Verdict) -> None:
    """Leave the guests up for a person."""
    from hotplate.report.terminal import summary
    from hotplate.session import access

    def say(text: str) -> None:
        print(f"hotplate: {text}", flush=True)

    if running := [each for each in trial.testbed.servers if each.machine.running]:
        say(summary(verdict).splitlines()[-1])
        access.pause(trial.testbed, running, trial.folder / "doors", say=say)


def after_a_loss(verdict: Verdict, lost: str) -> Verdict:
    """The verdict of a second try, which says what became of the first.

    :param lost: why the first one's machine was lost.
    """
    facts = {**verdict.subject.facts, "first try": f"the machine was lost: {lost}"}
    return replace(
        verdict,
        subject=replace(verdict.subject, facts=facts),
        reasons=(f"a first try lost its machine: {lost}", *verdict.reasons),
    )


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        raise HotplateError(f'"{file}" cannot be written: {error.strerror}') from error
