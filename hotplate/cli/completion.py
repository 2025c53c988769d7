"""Shell completion by the Tab key (argcomplete); imported only then."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterable

import argcomplete

from hotplate.errors import HotplateError

Completer = Callable[..., Iterable[str]]

#: The metavars in ``--help`` of arguments that are not files.
NO_FILES = frozenset(
    {"BYTES", "COMMAND", "GIB", "MIB", "N", "NAME", "NAME=VALUE", "SECONDS", "WORDS", "hash:M/N"}
)


def typed_words(line: str, point: int) -> list[str]:
    """Return the complete words between ``hotplate`` and the cursor.

    :param line: the typed line, bash's ``COMP_LINE``.
    :param point: the cursor's position in it, ``COMP_POINT``.
    """
    # Without a blank at the end the last word is still being typed.
    return line[:point].split()[1:] if line[:point].endswith(" ") else line[:point].split()[1:-1]


def complete(parser: argparse.ArgumentParser) -> None:
    """Print the possible continuations, and end the process."""
    add_completers(parser)
    argcomplete.autocomplete(parser)


def add_completers(parser: argparse.ArgumentParser) -> None:
    """Set the completer of each argument of a parser and of its verbs."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                add_completers(verb)
        elif (completer := _completer(action)) is not None:
            # argcomplete looks for this attribute.
            action.completer = completer  # type: ignore[attr-defined]


def _completer(action: argparse.Action) -> Completer | None:
    """Return the completer of an argument; None for its choices, or else for files."""
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
    """Return the groups with an element, appended to the text before the last comma."""
    from hotplate.image.plan import groups_with_an_element
    from hotplate.paths import elements_dir

    before = prefix[: prefix.rfind(",") + 1]
    # An error must not appear in the middle of a typed line.
    with contextlib.suppress(HotplateError):
        return [before + each for each in groups_with_an_element((elements_dir(),))]
    return ()


def _servers(parsed_args: argparse.Namespace, **_more: object) -> Iterable[str]:
    """Return the servers of the running session, if any."""
    from hotplate.cli.arguments import load_settings
    from hotplate.session.directory import find

    # The same, also while a session is ending.
    with contextlib.suppress(HotplateError, OSError):
        directory = find(getattr(parsed_args, "directory", None), load_settings())
        with directory.asked("servers") as (names, _, _):
            return [str(each) for each in names]
    return ()
