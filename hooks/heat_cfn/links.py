"""cfn-create-aws-symlinks: make links to the commands at their paths in Amazon's images."""

from __future__ import annotations

import argparse
import glob
import os
from typing import Any

from heat_cfn import command_line
from heat_cfn.problems import CfnError

PROGRAM = "cfn-create-aws-symlinks"


def main(argv: list[str] | None = None) -> int:
    """Run cfn-create-aws-symlinks; returns 0 when every command has its link."""
    options = command_line.parser(PROGRAM, "Link the cfn-* commands into another directory.")
    options.add_argument("-t", "--target", default="/opt/aws/bin", help="default: %(default)s")
    options.add_argument("-s", "--source", default="/usr/bin", help="default: %(default)s")
    options.add_argument("-f", "--force", action="store_true", help="replace what is there")
    options.add_argument("pattern", nargs="?", default="cfn-*", help=argparse.SUPPRESS)
    arguments = options.parse_args(argv)
    return command_line.run(PROGRAM, lambda: _link(arguments))


def _link(arguments: Any) -> int:
    commands = sorted(glob.glob(os.path.join(glob.escape(arguments.source), "cfn-*")))
    if not commands:
        raise CfnError(f'there are no cfn-* commands in "{arguments.source}"')
    in_the_way = []
    try:
        os.makedirs(arguments.target, exist_ok=True)
        for command in commands:
            place = os.path.join(arguments.target, os.path.basename(command))
            # Heat's boothook runs this at each boot: a link that is right stays.
            if os.path.islink(place) and os.readlink(place) == command:
                continue
            if os.path.lexists(place):
                if not arguments.force:
                    in_the_way.append(place)
                    continue
                os.unlink(place)
            os.symlink(command, place)
    except OSError as error:
        raise CfnError(f'no links can be made in "{arguments.target}": {error.strerror}') from None
    if in_the_way:
        raise CfnError(
            f"these exist and are something else (--force replaces them): {', '.join(in_the_way)}"
        )
    return 0
