"""``hotplate down``: end a session of ``hotplate up`` from anywhere."""

from __future__ import annotations

import argparse

from hotplate.cli.arguments import add_directory_argument, load_settings
from hotplate.errors import HotplateError
from hotplate.session.directory import find
from hotplate.timing.deadline import Deadline, DeadlineExceeded

SECONDS = 180.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate down``."""
    add_directory_argument(parser)
    parser.add_argument(
        "--keep",
        action="store_true",
        help="keep stacks and disks, even if up was run without --keep",
    )


def run(args: argparse.Namespace) -> int:
    """End it, and wait until it has ended."""
    directory = find(args.directory, load_settings())
    try:
        kept = directory.end(Deadline(SECONDS, "the session to end"), keep=args.keep)
    except DeadlineExceeded as error:
        raise HotplateError(f'the session in "{directory.path}" does not end: {error}') from error
    print(f'ended; its state is in "{directory.path}"' if kept else "ended; nothing was kept")
    return 0
