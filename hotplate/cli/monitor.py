"""``hotplate monitor``: send commands to the QEMU monitor of a server."""

from __future__ import annotations

import argparse
import sys

from hotplate.cli.arguments import add_command_arguments, add_directory_argument, load_settings
from hotplate.cli.shell import copy, each_command
from hotplate.session.directory import find


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate monitor``."""
    add_directory_argument(parser)
    add_command_arguments(parser, command='a command of QEMU\'s monitor, such as "help"')


def run(args: argparse.Namespace) -> int:
    """Send the command, or each typed line, to the monitor; print the answers."""
    directory = find(args.directory, load_settings())
    directory.require()

    def execute(command: str) -> int:
        details = {"server": args.server, "command": command}
        with directory.asked("monitor", **details) as (_, descriptors, _):
            copy(descriptors[0], sys.stdout)
        return 0

    return each_command(args.command, execute, prompt="(qemu) ")
