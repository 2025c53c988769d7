"""The ``hotplate`` command: one module for each verb.

A verb module exports ``add_arguments(parser)`` and ``run(args) -> int``.
``VERBS`` names them; a module is imported only for the verb that was typed, so that
``hotplate --help`` answers at once.

The exit statuses are :data:`hotplate.errors.EXIT_STATUSES`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from hotplate import __version__
from hotplate.errors import (
    EXIT_STATUSES,
    HotplateError,
    Outcome,
    UsageError,
    is_unforeseen,
    outcome_of,
    sentence_of,
    usable_names,
)
from hotplate.output import guarded

VERBS = {
    "build": "build an image with disk-image-create and good defaults",
    "test": "boot an image, give it a real Heat, and say whether its hooks run and signal",
    "worker": "run cases of hotplate test --on, as a worker of a Dask cluster",
    "up": "keep a cloud and its guests running, for you and the openstack command",
    "down": "stop what hotplate up keeps running",
    "ssh": "log into a server of hotplate up",
    "shell": "run a command as root in a server of hotplate up, even without ssh in its image",
    "monitor": "run a command in the QEMU monitor of a server of hotplate up",
    "inspect": "say what is in an image and what will not work, without booting it",
    "diff": "say what is different in two images, without booting them",
    "hook": "write a hook, hold it to the contract, run it here or push it into a guest",
    "lint": "say what is wrong with diskimage-builder elements",
    "elements-path": "print where hotplate's elements are, for disk-image-create",
    "cache": "list what is cached, or remove it",
    "doctor": "say what this host can do, and what to install",
}

#: Stands for all verbs, and cannot be the name of one.
EVERY = "every verb"

EPILOG = "exit status:\n" + "".join(
    f"  {status}      {meaning}\n" for status, meaning in EXIT_STATUSES.items()
)
EPILOG += "  128+N  interrupted by the signal N\n"


def _verb(name: str) -> ModuleType:
    return importlib.import_module(f"hotplate.cli.{name.replace('-', '_')}")


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hotplate",
        description="Put an image on the hotplate, and see whether it cooks.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hotplate {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    # The first word that is no option: the options before a verb take no value.
    typed = next((word for word in argv if not word.startswith("-")), "")
    for name, summary in VERBS.items():
        verb = verbs.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if typed in (name, EVERY):
            _verb(name).add_arguments(verb)
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """Return the parser with the arguments of all verbs, for documentation."""
    return _parser([EVERY])


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb; return the exit status.

    :param argv: the words after ``hotplate``; by default those of the command line.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    with guarded() as output:
        args = _parse(words)
        args.words = words
        status = _run(args)
        # Here, because an error of the last write at exit could not be reported.
        output.flush()
        if output.problem is None:
            return status
        why = f"the standard output cannot be written: {output.problem.strerror}"
        print(f"hotplate {args.verb}: {why}", file=sys.stderr)
        # The result of a test is the image's, even when it could not be printed.
        return status if args.verb == "test" else status or Outcome.HOST.exit_status


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words; an unknown option is reported for the verb that lacks it."""
    parser = _parser(words)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        # argparse itself shows the usage of "hotplate", which has no options.
        parser = _innermost(parser, args)
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_nearest(parser, unknown)}")
    return args


def _innermost(
    parser: argparse.ArgumentParser, args: argparse.Namespace
) -> argparse.ArgumentParser:
    """Return the parser of the verb that was typed, or of the verb below it."""
    # argparse has no public list of a parser's actions.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            below: argparse.ArgumentParser = action.choices[getattr(args, action.dest)]
            return _innermost(below, args)
    return parser


def _nearest(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    """Return the option that was probably meant, in words; "" when none is similar."""
    import difflib

    names = [name for each in parser._actions for name in each.option_strings]
    typed = next((each.partition("=")[0] for each in unknown if each.startswith("-")), "")
    nearest = difflib.get_close_matches(typed, names, n=1)
    return f" (the nearest option is {nearest[0]})" if nearest else ""


def _complete() -> None:
    """Answer a shell's request for completions; see argcomplete's documentation."""
    from hotplate.cli.completion import complete, typed_words

    line, point = os.environ.get("COMP_LINE", ""), os.environ.get("COMP_POINT", "0")
    complete(_parser(typed_words(line, int(point))))


def _run(args: argparse.Namespace) -> int:
    """Run a verb, and report an error by who has to act."""
    # Imported here: completion does without it.
    from hotplate.settings import misspelt

    try:
        _check_directory()
        for name, meant in misspelt(os.environ).items():
            print(f"hotplate: nothing reads {name}; did you mean {meant}?", file=sys.stderr)
        with usable_names():
            status: int = _verb(args.verb).run(args)
        return status
    except HotplateError as error:
        print(f"hotplate {args.verb}: {error}", file=sys.stderr)
        return outcome_of(error).exit_status
    except KeyboardInterrupt as error:
        print(f"hotplate {args.verb}: {sentence_of(error)}", file=sys.stderr)
        # As a shell reports a program that a signal has ended.
        return 128 + getattr(error, "number", signal.SIGINT)
    except Exception as error:
        if is_unforeseen(error):
            traceback.print_exc()
        print(f"hotplate {args.verb}: {sentence_of(error)}", file=sys.stderr)
        return outcome_of(error).exit_status


def _check_directory() -> None:
    """Check the current directory, to which every verb's file names are relative.

    :raises UsageError: when it no longer exists.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(
            f"the current directory cannot be used: {error.strerror}", hint="cd to another one"
        ) from error
