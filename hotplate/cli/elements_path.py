"""``hotplate elements-path``: print the path of hotplate's elements, for ``ELEMENTS_PATH``."""

from __future__ import annotations

import argparse

from hotplate.errors import Outcome
from hotplate.paths import elements_dir, hooks_dir

ABOUT = """\
Print the directory of hotplate's diskimage-builder elements, for whoever
calls disk-image-create. With --hooks, the directory of the programs that their
heat-config-hooks name.
"""

EPILOG = """\
exit status:
  0      it was printed
  2      wrong usage
  3      hotplate is not installed as a whole

example:
  ELEMENTS_PATH=$(hotplate elements-path) disk-image-create vm debian-minimal heat-config-script
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fill in the command line of ``hotplate elements-path``."""
    parser.description, parser.epilog = ABOUT, EPILOG
    parser.add_argument("--hooks", action="store_true", help="print that of the hooks")


def run(args: argparse.Namespace) -> int:
    """Print a directory.

    :raises HostError: when it is neither in a checkout nor installed.
    """
    print(hooks_dir() if args.hooks else elements_dir())
    return Outcome.PASSED.exit_status
