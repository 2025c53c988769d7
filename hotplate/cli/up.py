"""``hotplate up``: keep a cloud and its guests running until they are ended."""

from __future__ import annotations

import argparse
import contextlib
import threading
from pathlib import Path

from hotplate.cli import test
from hotplate.errors import UsageError
from hotplate.session.session import find

NAME = "up"
HELP = "keep a cloud and its guests running, for you and the openstack command"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of ``hotplate up``."""
    parser.add_argument(
        "image", type=Path, metavar="IMAGE", help="what every server boots: a qcow2 or raw image"
    )
    test.add_template_arguments(parser, without="no stack is made: openstack stack create does it")
    add_directory_argument(parser)
    parser.add_argument("--artifacts", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument(
        "--keep",
        action="store_true",
        default=None,
        help="keep stacks and disks when the session ends; the next up on them goes on",
    )
    test.add_machine_arguments(parser)
    test.add_cloud_arguments(parser)


def add_directory_argument(parser: argparse.ArgumentParser) -> None:
    """What says which session is meant."""
    parser.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        help="the session's directory (default: up in the directory of the artefacts)",
    )


def run(args: argparse.Namespace) -> int:
    """Run it until ``hotplate down``, an interrupt or a termination."""
    from hotplate.stacks import template as templates

    settings = test.load_settings(args)
    test.load_cloud_options(args)
    parameters = templates.parse_parameters(args.parameter)
    template = None
    if args.template is not None:
        template = templates.load(
            args.template, parameters=parameters, environments=args.environment
        )
    elif parameters or args.environment:
        raise UsageError("-P and -e need a template", hint="-t TEMPLATE")

    from hotplate.image.inspect import Image

    image = Image.open(args.image)

    from hotplate.session import up

    lock = threading.Lock()

    def say(text: str) -> None:
        # That nobody reads any more (a closed terminal, a pipe) must not stop Heat's threads.
        with lock, contextlib.suppress(OSError):
            print(text, flush=True)

    with up.Up(
        image,
        directory=find(args.directory, settings),
        settings=settings,
        options=lambda key: test.load_cloud_options(args, public_key=key),
        say=say,
    ) as session:
        if template is not None:
            session.create(template)
        say("up; Ctrl-C ends it; in another terminal:\n" + session.ways_in())
        session.run()
        say("going down" + (", and keeping what is there" if session.keep else ""))
    return 0
