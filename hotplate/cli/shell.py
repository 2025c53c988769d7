"""``hotplate shell``: run a command as root in a server, over a port that needs no network."""

from __future__ import annotations

import argparse
import os
import sys

from hotplate.cli.test import load_settings
from hotplate.cli.up import add_directory_argument
from hotplate.session import find

NAME = "shell"
HELP = "run a command as root in a server of hotplate up, whatever is in its image"
SECONDS = 600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of ``hotplate shell``."""
    add_directory_argument(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=SECONDS,
        metavar="SECONDS",
        help="kill the command after that long (default: %(default).0f)",
    )
    parser.add_argument("server", metavar="SERVER", help="its name; '' for the only one")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="a command for sh; without it, lines are read from the standard input",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command, or each line that is typed; the exit status is the last command's."""
    directory = find(args.directory, load_settings(args))

    def execute(command: str) -> int:
        details = {"server": args.server, "command": command, "timeout": args.timeout}
        with directory.asked("shell", **details) as (status, descriptors, _):
            for source, target in zip(descriptors, (sys.stdout, sys.stderr), strict=True):
                with os.fdopen(os.dup(source), "rb") as stream:
                    target.buffer.write(stream.read())
                target.flush()
        return int(status)

    if args.command:
        return execute(" ".join(args.command))
    status = 0
    prompt = f"{args.server or 'server'}# " if sys.stdin.isatty() else ""
    while True:
        try:
            line = input(prompt)
        except EOFError:
            return status
        if line.strip():
            status = execute(line)
