"""``hotplate ssh``: log into a server of a session with the ordinary ssh."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from typing import NoReturn

from hotplate.cli.arguments import add_directory_argument, load_settings
from hotplate.errors import HostError
from hotplate.session.channel import pass_on
from hotplate.session.directory import SessionDirectory, find

EPILOG = """\
exit status:
  N      ssh's: that of the command in the server, or 255 when ssh fails
  2      wrong usage, or no session or server of that name
  3      the host lacks something, ssh for instance, or ran out of it
  4      the guest does not answer
  128+N  interrupted by the signal N, before ssh began

When hotplate itself fails, a line on standard error begins with "hotplate ssh:".

example:
  hotplate ssh web journalctl -u os-collect-config
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate ssh``."""
    parser.epilog = EPILOG
    add_directory_argument(parser)
    parser.add_argument(
        "--connect",
        action="store_true",
        help="for ssh's ProxyCommand: hand the connection over to ssh",
    )
    parser.add_argument(
        "server",
        nargs="?",
        default="",
        metavar="SERVER",
        help="the server's name, if there is more than one",
    )
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="a command to run instead of a shell",
    )


def run(args: argparse.Namespace) -> int:
    """Replace this process by ssh; the exit status is that of the command in the server."""
    directory = find(args.directory, load_settings())
    if not args.connect:
        _become_ssh(directory, args.server, args.command)
    with directory.asked("connect", server=args.server) as (_, descriptors, _):
        # The standard output of a ProxyCommand with ProxyUseFdpass is a socket that takes a
        # descriptor.
        pass_on(descriptors[0], sys.stdout.fileno())
    return 0


def _become_ssh(directory: SessionDirectory, server: str, command: Sequence[str]) -> NoReturn:
    program = shutil.which("ssh")
    if program is None:
        raise HostError(
            'the program "ssh" was not found in PATH',
            hint=f"apt-get install openssh-client, or: {directory.command('shell', 'COMMAND')}",
        )
    with directory.asked("server", server=server) as (name, _, _):
        # Its ProxyCommand calls this verb again, with --connect.
        words = [program, "-F", str(directory.ssh_config), name, *command]
    # No child: ssh gets the terminal, the signals and the exit status.
    os.execv(program, words)  # noqa: S606
