"""What a shell offers when Tab is pressed (argcomplete); loaded then only."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import argcomplete

from hotplate.errors import HotplateError

Completer = Callable[..., Iterable[str]]

NO_FILES = frozenset(
    {"BYTES", "COMMAND", "GIB", "MIB", "N", "NAME", "NAME=VALUE", "SECONDS", "WORDS", "hash:M/N"}
)
"""What arguments are shown as, in ``--help``, that are no files."""


def typed_words(line: str, point: int) -> list[str]:
    """Return the words after ``hotplate`` that are before the cursor, as far as they are whole.

    :param line: what was typed, as bash has it in ``COMP_LINE``.
    :param point: where the cursor is in it, ``COMP_POINT``.
    """
    return line[:point].split()[1:] if line[:point].endswith(" ") else line[:point].split()[1:-1]


def complete(parser: argparse.ArgumentParser) -> None:
    """Print what may follow what was typed, and end the process."""
    add_completers(parser)
    argcomplete.autocomplete(parser)


def add_completers(parser: argparse.ArgumentParser) -> None:
    """Say of each argument of a parser, and of those of its verbs, what it can be."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                add_completers(verb)
        elif (completer := _completer(action)) is not None:
            action.completer = completer  # type: ignore[attr-defined]


def _completer(action: argparse.Action) -> Completer | None:
    """Return what an argument is completed by; None for its choices, or else for files."""
    own: dict[str, Completer] = {"release": _releases, "group": _groups, "server": _servers}
    if action.dest in own and not action.choices:
        return own[action.dest]
    return _nothing if action.metavar in NO_FILES else None


def _nothing(**_more: object) -> Iterable[str]:
    return ()


def _releases(**_more: object) -> Iterable[str]:
    from hotplate.image.plan import RELEASES

    return RELEASES


def _groups(prefix: str = "", **_more: object) -> Iterable[str]:
    """Return the groups that have an element, behind those that are there before a comma."""
    from hotplate.image.plan import groups_with_an_element
    from hotplate.paths import elements_dir

    before = prefix[: prefix.rfind(",") + 1]
    with contextlib.suppress(HotplateError):
        return [before + each for each in groups_with_an_element((elements_dir(),))]
    return ()


def _servers(parsed_args: argparse.Namespace, **_more: object) -> Iterable[str]:
    """Return the servers of the session that runs, if one does."""
    from hotplate.session.directory import find
    from hotplate.settings import Settings

    with contextlib.suppress(HotplateError, OSError):
        settings = Settings.load({}, environ=os.environ, directory=Path.cwd())
        directory = find(getattr(parsed_args, "directory", None), settings)
        with directory.asked("servers") as (names, _, _):
            return [str(each) for each in names]
    return ()
