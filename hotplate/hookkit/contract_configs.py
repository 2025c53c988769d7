"""The configs of a check, in the language of the hook's tool, and its other properties.

Only the standard library is used, because guests run this too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: The configs of a check, each with its requirement; only ``ok`` is mandatory.
ROLES = {
    "ok": "does something that succeeds, and prints @word@",
    "inputs": "prints @word@, and writes each input that is declared as an output to that output",
    "fails": "fails, with @word@ among what it prints about that",
    "large": "prints @word@ and more than a megabyte to stdout",
    "binary": "prints @word@ and bytes that are not UTF-8 to stdout",
    "slow": "writes a line to the FIFO @ready@, then runs for ten minutes",
    "without-tool": "needs the tool; by default ok",
}


@dataclass(frozen=True)
class ContractFile:
    """The content of a contract file.

    :param configs: by the names of :data:`ROLES`; text, or a map for hooks that take one.
    :param tool: the program that the hook needs; empty when there is none.
    :param may_change: the directories that the tool itself changes.
    :param options: the options of each deployment.
    :param not_tried: reasons by the names of lines for which the group can have no config.
    :param exceptions: reasons by the names of excused faults, see
        :data:`~hotplate.hookkit.contract.EXCEPTIONS`.
    :param path: the file; None when nothing was read.
    """

    configs: Mapping[str, object] = field(default_factory=dict)
    tool: str = ""
    may_change: tuple[Path, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    not_tried: Mapping[str, str] = field(default_factory=dict)
    exceptions: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ContractFile:
        """Return the object that another host has sent as JSON."""
        return cls(**{**document, "may_change": tuple(map(Path, document["may_change"]))})


def filled_in(config: object, values: Mapping[str, str]) -> object:
    """Return a config with values for its ``@names@``, in maps and lists too.

    >>> filled_in({"@word@": ["x @word@"]}, {"word": "hi"})
    {'hi': ['x hi']}
    """
    if isinstance(config, str):
        for name, value in values.items():
            config = config.replace(f"@{name}@", value)
        return config
    if isinstance(config, dict):
        return {filled_in(key, values): filled_in(each, values) for key, each in config.items()}
    if isinstance(config, list):
        return [filled_in(each, values) for each in config]
    return config


def has(config: object, name: str) -> bool:
    """Return True when a config contains ``@name@``."""
    return f"@{name}@" in json.dumps(config, default=str)
