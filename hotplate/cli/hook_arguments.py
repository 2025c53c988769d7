"""Arguments that the hook verbs share, and the values read from them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from hotplate.errors import UsageError

CONFIG_LIMIT = 16 << 20
"""The size limit of a config in bytes."""


def add_deployment_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the inputs, options and outputs of a deployment."""
    for name, text in (
        ("input", "an input, of type String"),
        ("option", "an option of the config"),
    ):
        parser.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help=f"{text}; may be given several times",
        )
    parser.add_argument(
        "--output",
        action="append",
        default=[],
        metavar="NAME",
        help="a declared output; may be given several times",
    )


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return names and values; text without a name may be a secret, and is not quoted."""
    pairs = {}
    for number, each in enumerate(given, 1):
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise UsageError(f"{option} number {number} is not NAME=VALUE")
        pairs[name] = value
    return pairs


def read_config(name: str) -> str:
    """Return a config as text.

    :raises UsageError: when it cannot be read.
    """
    try:
        if name == "-":
            data = sys.stdin.buffer.read(CONFIG_LIMIT + 1)
        else:
            with Path(name).open("rb") as stream:
                data = stream.read(CONFIG_LIMIT + 1)
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f'the config "{name}" is not text in UTF-8') from None
    except OSError as error:
        raise UsageError(f'the config "{name}" cannot be read: {error.strerror}') from error
    if len(data) > CONFIG_LIMIT:
        raise UsageError(f'the config "{name}" is larger than {CONFIG_LIMIT >> 20} MiB')
    return text
