"""``hotplate up``: keep a cloud and its guests running until they are ended."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hotplate import heat_releases
from hotplate.cli import arguments
from hotplate.errors import UsageError
from hotplate.output import LiveLine
from hotplate.session.directory import find

if TYPE_CHECKING:
    from hotplate.settings import Settings
    from hotplate.stacks.template import Template
from hotplate.text import clean, clean_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate up``."""
    parser.add_argument(
        "image", type=Path, metavar="IMAGE", help="what every server boots, an image as for test"
    )
    arguments.add_image_argument(parser)
    arguments.add_template_arguments(
        parser, without="no stack is created: use openstack stack create"
    )
    arguments.add_directory_argument(parser)
    parser.add_argument(
        "--artifacts",
        dest=f"{arguments.SETTING}artifacts",
        type=Path,
        metavar="DIR",
        help=argparse.SUPPRESS,
    )
    arguments.add_settings(parser, "keep")
    parser.add_argument(
        "--restored",
        action="store_true",
        help="begin with one server that is restored in seconds, as in pytest: agent idle, polling "
        "twice a second; the first time, the image is booted for that",
    )
    arguments.add_machine_arguments(parser)
    arguments.add_settings(parser, "heat")
    arguments.add_cloud_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run it until ``hotplate down``, an interrupt or a termination."""
    settings = arguments.load_settings(args)
    with heat_releases.chosen(settings.heat, cache=settings.cache, words=args.words):
        return _run(args, settings)


def _run(args: argparse.Namespace, settings: Settings) -> int:
    # First the options and the template, which may be misspelt.
    options = arguments.load_cloud_options(args)
    template = arguments.load_template(
        args.template, parameters=args.parameter, environments=args.environment
    )
    if args.restored:
        _check_restored(settings, template)

    # Then the images, whose checksums may take a while.
    from hotplate.image import named
    from hotplate.testbed.boot_images import open_image, open_images

    image = open_image(args.image, settings)
    others = open_images(named.parse(args.named_images), settings)

    # Last the cloud, which is slow to load.
    from hotplate.session import up

    said, since = "", time.monotonic()

    def now() -> str:
        return f"{time.monotonic() - since:7.1f} s  {said}" if said else ""

    def say(text: str) -> None:
        nonlocal said, since
        # Threads of Heat say something, too, and a closed terminal must not stop them.
        lines.say(clean(text))
        said, since = "" if is_up else clean_line(text), time.monotonic()

    is_up = False
    with (
        LiveLine(sys.stdout, now) as lines,
        up.Up(
            image,
            directory=find(args.directory, settings),
            settings=settings,
            options=lambda key: replace(options, public_key=key),
            say=say,
            others=others,
            restored=args.restored,
        ) as session,
    ):
        if template is not None:
            session.create(template)
        is_up = True
        version = heat_releases.installed_version()
        say(f"up, with Heat {version}; Ctrl-C ends it; in another terminal:\n{session.ways_in()}")
        session.run()
        say("going down" + (", and keeping what is there" if session.keep else ""))
    return 0


def _check_restored(settings: Settings, template: Template | None) -> None:
    """Refuse options that conflict with ``--restored``.

    :raises UsageError: names the option.
    """
    if template is not None:
        raise UsageError(
            "--restored begins with a server of its own, and without a stack of yours",
            hint="leave out --template, and create the stack with openstack stack create",
        )
    if settings.keep:
        raise UsageError("a restored server cannot be kept", hint="leave out --keep")
