"""``hotplate up``: keep a cloud and its guests running until they are ended."""

from __future__ import annotations

import argparse
import contextlib
import threading
from pathlib import Path

from hotplate.cli import arguments
from hotplate.session.directory import find
from hotplate.text import clean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate up``."""
    parser.add_argument(
        "image", type=Path, metavar="IMAGE", help="what every server boots: a qcow2 or raw image"
    )
    arguments.add_image_argument(parser)
    arguments.add_template_arguments(
        parser, without="no stack is created: use openstack stack create"
    )
    arguments.add_directory_argument(parser)
    parser.add_argument("--artifacts", type=Path, metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument(
        "--keep",
        action="store_true",
        default=None,
        help="keep stacks and disks when the session ends, for the next hotplate up",
    )
    arguments.add_machine_arguments(parser)
    arguments.add_cloud_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run it until ``hotplate down``, an interrupt or a termination."""
    settings = arguments.load_settings(args)
    arguments.load_cloud_options(args)
    template = arguments.load_template(args)

    from hotplate.image.inspect import Image

    checksums = settings.cache / "checksums"
    image = Image.open(args.image, allow_backing=settings.allow_backing, checksums=checksums)
    others = arguments.load_named_images(args, settings)

    from hotplate.session import up

    lock = threading.Lock()

    def say(text: str) -> None:
        # That nobody reads any more (a closed terminal, a pipe) must not stop Heat's threads.
        with lock, contextlib.suppress(OSError):
            print(clean(text), flush=True)

    with up.Up(
        image,
        directory=find(args.directory, settings),
        settings=settings,
        options=lambda key: arguments.load_cloud_options(args, public_key=key),
        say=say,
        others=others,
    ) as session:
        if template is not None:
            session.create(template)
        say("up; Ctrl-C ends it; in another terminal:\n" + session.ways_in())
        session.run()
        say("going down" + (", and keeping what is there" if session.keep else ""))
    return 0
