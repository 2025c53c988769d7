"""``hotplate shell``: run a command as root in a server, over a port that needs no network."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Callable
from typing import TextIO

from hotplate.cli.arguments import add_command_arguments, add_directory_argument, load_settings
from hotplate.errors import UsageError
from hotplate.output import Output
from hotplate.session.channel import content_of, in_memory
from hotplate.session.directory import find

SECONDS = 600.0
EPILOG = """\
exit status:
  N      that of the command in the guest; without one, of the last line typed
  2      wrong usage, or no session or server of that name
  3      the host lacks something or ran out of it
  4      the guest does not answer, or the command was killed after --timeout
  128+N  interrupted by the signal N

When hotplate itself fails, a line on standard error begins with "hotplate shell:".

examples:
  hotplate shell web heat-config status
  hotplate shell web 'cat > /etc/motd' < motd
"""

#: The most bytes that can be sent to a guest in pieces within a reasonable time.
INPUT_BYTES = 16 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate shell``."""
    parser.epilog = EPILOG
    add_directory_argument(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=SECONDS,
        metavar="SECONDS",
        help="kill the command after this long (default: %(default).0f)",
    )
    parser.add_argument(
        "-i",
        "--stdin",
        action="store_true",
        help="read standard input to its end and pass it to the command; a file (< FILE) is "
        "passed without this option",
    )
    add_command_arguments(parser, command="a command for sh")


def run(args: argparse.Namespace) -> int:
    """Run the command, or each typed line; return the exit status of the last command."""
    directory = find(args.directory, load_settings())
    directory.require()

    if not 0 < args.timeout < float("inf"):
        raise UsageError(f"--timeout {args.timeout} is not a time; expected seconds")
    handed = [in_memory(_standard_input(asked=args.stdin))] if args.command else []

    def execute(command: str) -> int:
        details = {"server": args.server, "command": command, "timeout": args.timeout}
        with directory.asked("shell", descriptors=handed, **details) as (status, descriptors, _):
            for source, target in zip(descriptors, (sys.stdout, sys.stderr), strict=True):
                copy(source, target)
        return int(status)

    return each_command(args.command, execute, prompt=f"{args.server or 'server'}# ")


def _standard_input(*, asked: bool) -> bytes:
    """Return the input of a command: a file; a pipe only on request, because it may never end.

    :raises UsageError: when it is too much.
    """
    try:
        is_file = stat.S_ISREG(os.fstat(0).st_mode)
    # Descriptor 0 may be closed.
    except OSError:
        return b""
    if not (is_file or asked):
        return b""
    # A copy, so that the end of the stream does not close descriptor 0.
    with os.fdopen(os.dup(0), "rb") as stream:
        data = stream.read(INPUT_BYTES + 1)
    if len(data) > INPUT_BYTES:
        raise UsageError(
            f"standard input has more than {INPUT_BYTES >> 20} MiB", hint="copy it by ssh"
        )
    return data


def copy(source: int, target: TextIO) -> None:
    """Print the content of a descriptor, byte for byte."""
    data = content_of(source)
    if isinstance(target, Output):
        target.write_bytes(data)
    else:
        target.buffer.write(data)
        target.flush()


def each_command(words: list[str], execute: Callable[[str], int], *, prompt: str) -> int:
    """Execute the command in these words, or else each typed line.

    :return: the result of the last one.
    """
    if words:
        return execute(" ".join(words))
    status = 0
    while True:
        try:
            # Only a person gets a prompt; from a pipe come lines alone.
            line = input(prompt if sys.stdin.isatty() else "")
        except EOFError:
            return status
        if line.strip():
            status = execute(line)
