"""What a hook is tried with: configs in its tool's language, from a file beside it or from ours.

A contract file is YAML; ``NAME.check.yaml`` lies beside the hook ``NAME.py``::

    tool: puppet
    may-change: [/var/lib/puppet]
    configs:
      ok: notice('@word@')
      fails: fail('@word@')
    not-tried:
      binary-output: a manifest prints no bytes

``docs/writing-hooks.rst`` says what each config has to do.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from hotplate.errors import UsageError
from hotplate.hookkit.contract import LINE_NAMES

ROLES = {
    "ok": "does something that succeeds, and prints @word@",
    "inputs": "prints @word@, and writes each input that is declared as an output to that output",
    "fails": "fails, with @word@ among what it prints about that",
    "large": "prints @word@ and more than a megabyte to stdout",
    "binary": "prints @word@ and bytes that are not UTF-8 to stdout",
    "slow": "writes a line to the FIFO @ready@, then runs for ten minutes",
    "without-tool": "needs the tool; by default ok",
}
"""The configs that a hook is tried with, and what each has to do; only ``ok`` must be there."""

SUFFIX = ".check.yaml"
FILE_LIMIT = 1 << 20
"""Bytes of a contract file, and of one config."""

_BUILT_IN = Path(__file__).with_name("contracts")
_KEYS = {"tool", "may-change", "options", "configs", "not-tried"}


@dataclass(frozen=True)
class ContractFile:
    """What a hook is tried with.

    :param configs: by the names of :data:`ROLES`; text, or a map for hooks that take one.
    :param tool: the program that the hook needs; empty when there is none.
    :param may_change: the directories that the tool itself changes.
    :param options: those of each deployment.
    :param not_tried: reasons by the names of lines for which the group can have no config.
    :param path: the file; None when nothing was read.
    """

    configs: Mapping[str, object] = field(default_factory=dict)
    tool: str = ""
    may_change: tuple[Path, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    not_tried: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None

    def with_configs(self, given: Mapping[str, object]) -> ContractFile:
        """Return the same with other configs in place of those of these names."""
        return replace(self, configs={**self.configs, **given})

    def with_tool(self, tool: str) -> ContractFile:
        """Return the same for another program, unless none is given."""
        return replace(self, tool=tool) if tool else self


def contract_file(hook: Path, group: str) -> ContractFile:
    """Return what lies beside a hook, else what we have for its group, else nothing.

    :raises UsageError: when the file cannot be used.
    """
    for path in (hook.with_name(hook.stem + SUFFIX), _BUILT_IN / f"{group}.yaml"):
        if path.is_file():
            return read(path)
    return ContractFile()


def read(path: Path) -> ContractFile:
    """Return the content of a contract file.

    :raises UsageError: when it is not one.
    """
    try:
        with path.open("rb") as stream:
            content: Any = yaml.safe_load(stream.read(FILE_LIMIT))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        detail = " ".join(str(error).split())
        raise UsageError(f'the contract file "{path}" cannot be read: {detail}') from error
    problem = _problem(content)
    if problem:
        raise UsageError(f'the contract file "{path}" {problem}')
    return ContractFile(
        configs=content.get("configs") or {},
        tool=content.get("tool") or "",
        may_change=tuple(map(Path, content.get("may-change") or ())),
        options=content.get("options") or {},
        not_tried=content.get("not-tried") or {},
        path=path,
    )


def _problem(content: Any) -> str:
    """Return what is wrong with the content of a contract file; empty when nothing is."""
    if not isinstance(content, dict):
        return f"is no map; expected one of the keys {', '.join(sorted(_KEYS))}"
    for given, expected, kind in (
        (content, _KEYS, "key"),
        (content.get("configs"), set(ROLES), "config"),
        (content.get("not-tried"), set(LINE_NAMES), "line"),
    ):
        if given is not None and not isinstance(given, dict):
            return f"has a {kind} list that is no map"
        for name in (given or {}).keys() - expected:
            return f'has the {kind} "{name}"; expected one of {", ".join(sorted(expected))}'
    if not isinstance(content.get("tool") or "", str):
        return 'has a "tool" that is not text; expected the name of a program'
    places = content.get("may-change") or []
    if not (isinstance(places, list) and all(isinstance(each, str) for each in places)):
        return 'has a "may-change" that is no list of directories'
    if not isinstance(content.get("options") or {}, dict):
        return 'has "options" that are no map'
    if not all(isinstance(each, str) for each in (content.get("not-tried") or {}).values()):
        return 'has a "not-tried" whose reasons are not text'
    return ""


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
    """Return True when ``@name@`` stands in a config."""
    return f"@{name}@" in json.dumps(config, default=str)
