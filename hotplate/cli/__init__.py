"""The ``hotplate`` command: one module a verb.

A verb module exports ``NAME``, ``HELP``, ``add_arguments(parser)`` and ``run(args) -> int``.
``VERBS`` names them; a module is imported only for the verb that was typed, so that
``hotplate --help`` answers at once.

Exit status: 0 passed, 1 the image or template failed, 2 wrong usage, 3 the host lacks something.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from hotplate import __version__
from hotplate.errors import HotplateError

VERBS = {
    "build": "build an image with disk-image-create and good defaults",
    "test": "boot an image, give it a real Heat, and say whether its hooks run and signal",
    "up": "keep a cloud and its guests running, for you and the openstack command",
    "down": "end what hotplate up keeps running",
    "ssh": "log into a server of hotplate up",
    "shell": "run a command as root in a server of hotplate up, whatever is in its image",
    "monitor": "give QEMU's monitor a command about a server of hotplate up",
    "cache": "list what is kept to be faster the next time, or remove it",
    "doctor": "say what this host can do, and what to install",
}

EPILOG = """\
exit status: 0 passed; 1 the image or template failed; 2 wrong usage; 3 the host lacks something
"""


def _verb(name: str) -> ModuleType:
    return importlib.import_module(f"hotplate.cli.{name}")


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hotplate",
        description="Put an image on the hotplate, and see whether it cooks.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hotplate {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    typed = next((word for word in argv if not word.startswith("-")), "")
    for name, summary in VERBS.items():
        verb = verbs.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == typed:
            _verb(name).add_arguments(verb)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; returns the exit status.

    :param argv: the words after ``hotplate``; by default those that were typed.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    args = _parser(words).parse_args(words)
    try:
        status: int = _verb(args.verb).run(args)
        return status
    except HotplateError as error:
        print(f"hotplate {args.verb}: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print(f"hotplate {args.verb}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Who read our output has gone; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
