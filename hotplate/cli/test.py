"""``hotplate test``: boot an image beside a real Heat and give a verdict."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from hotplate.errors import HotplateError, UsageError
from hotplate.settings import Accelerator, Datasource, Firmware, Settings, Wiring

NAME = "test"
HELP = "boot an image, give it a real Heat, and say whether its hooks run and signal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of ``hotplate test``."""
    parser.add_argument("image", type=Path, metavar="IMAGE", help="a qcow2 or raw image")
    parser.add_argument(
        "-t",
        "--template",
        type=Path,
        help="a HOT or CFN template; without it, a built-in one that deploys a script",
    )
    parser.add_argument(
        "-e",
        "--environment",
        type=Path,
        action="append",
        default=[],
        help="an environment for the template; may be given several times",
    )
    parser.add_argument(
        "-P",
        "--parameter",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the template; may be given several times",
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the verdict as JUnit XML")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the verdict as JSON")
    parser.add_argument("--artifacts", type=Path, metavar="DIR", help="where runs leave everything")
    parser.add_argument("--memory", type=int, metavar="MIB", help="memory of each guest")
    parser.add_argument("--cpus", type=int, help="processors of each guest")
    for name, kind in (
        ("accelerator", Accelerator),
        ("wiring", Wiring),
        ("firmware", Firmware),
        ("datasource", Datasource),
    ):
        parser.add_argument(f"--{name}", choices=[each.value for each in kind])
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


def load_settings(args: argparse.Namespace) -> Settings:
    """The settings of a run, from the command line downwards.

    :raises UsageError: for a value that is wrong; names its source.
    """
    return Settings.load(vars(args), environ=os.environ, directory=Path.cwd())


def run(args: argparse.Namespace) -> int:
    """Run it; the exit status is the verdict's."""
    from hotplate import template as templates

    settings = load_settings(args)
    for file in (args.junit, args.json):
        if file is not None and not file.absolute().parent.is_dir():
            raise UsageError(f'"{file}" cannot be written: there is no such directory')
    parameters = templates.parse_parameters(args.parameter)
    if args.template is None:
        if parameters or args.environment:
            raise UsageError("-P and -e need a template", hint="-t TEMPLATE")
        template = templates.builtin()
    else:
        template = templates.load(
            args.template, parameters=parameters, environments=args.environment
        )

    from hotplate.image.inspect import Image

    image = Image.open(args.image)

    from hotplate.events import EventLog
    from hotplate.paths import cache_dir
    from hotplate.run import Run
    from hotplate.verdict import junit
    from hotplate.verdict.artefacts import Artefacts
    from hotplate.verdict.history import History
    from hotplate.verdict.html import report
    from hotplate.verdict.stages import ORDER
    from hotplate.verdict.terminal import Progress, summary

    began = time.monotonic()
    events = EventLog()
    artefacts = Artefacts(settings.artifacts.absolute(), image.path.name)
    history = History(cache_dir() / "history.json")
    key = f"{image.sha256()}-{template.source}"
    with Progress(
        sys.stdout, stages=ORDER, expected=history.expected(key), quiet=args.quiet
    ) as progress:
        progress.say(f"image: {image.path} ({image.layout.value}, {image.format})")
        progress.say(f"template: {template.source}")
        events.subscribe(
            lambda event: progress.powered(event.at) if event.kind == "power-on" else None
        )
        with Run(
            image,
            template,
            settings=settings,
            folder=artefacts.folder,
            events=events,
            say=progress.say,
            on_reached=progress.reached,
        ) as trial:
            verdict = trial.judge()
    if verdict.passed:
        history.record(key, verdict.stages)
    artefacts.copy(Path(args.template or templates.BUILTIN), "template.yaml")
    artefacts.write_json("parameters.json", dict(template.parameters))
    artefacts.finish(verdict, events, report=report(verdict, events))
    if args.junit is not None:
        _write(args.junit, junit.to_xml([verdict]))
    if args.json is not None:
        document = json.dumps(verdict.to_json(), indent=2, ensure_ascii=False, default=str)
        _write(args.json, document.encode() + b"\n")
    print(summary(verdict), end="")
    if not args.quiet:
        print(f"({time.monotonic() - began:.0f} s in all)")
    if artefacts.problem is not None:
        print(f"hotplate test: {artefacts.problem}", file=sys.stderr)
    return verdict.exit_status


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except OSError as error:
        raise HotplateError(f'"{file}" cannot be written: {error.strerror}') from error
