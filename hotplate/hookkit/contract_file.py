"""Read a contract file, from beside the hook or from hotplate's own.

A contract file is YAML; ``NAME.check.yaml`` lies beside the hook ``NAME.py``::

    tool: puppet
    may-change: [/var/lib/puppet]
    configs:
      ok: notice('@word@')
      fails: fail('@word@')
    not-tried:
      binary-output: a manifest prints no bytes

``docs/writing-hooks.rst`` describes each config.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from hotplate import yaml_text
from hotplate.errors import UsageError
from hotplate.hookkit.contract import EXCEPTIONS, LINE_NAMES
from hotplate.hookkit.contract_configs import ROLES, ContractFile

SUFFIX = ".check.yaml"
#: The size limit in bytes of a contract file, and of one config.
FILE_LIMIT = 1 << 20

#: The content of a contract file for each group of hotplate's own hooks.
_BUILT_IN = Path(__file__).with_name("contracts.yaml")

_KEYS = {"tool", "may-change", "options", "configs", "not-tried", "exceptions"}


def contract_file(hook: Path, group: str) -> ContractFile:
    """Return the contract file beside a hook, else hotplate's for its group, else an empty one.

    :raises UsageError: when the file cannot be used.
    """
    # The suffix replaces that of the hook, whatever its language.
    beside = hook.with_name(hook.stem + SUFFIX)
    if beside.is_file():
        return read(beside)
    return dict(built_in()).get(group, ContractFile())


def built_in() -> Iterator[tuple[str, ContractFile]]:
    """Yield each group with a contract file of hotplate's, and its content."""
    for group, content in _load(_BUILT_IN).items():
        yield group, _made(_BUILT_IN, content)


def read(path: Path) -> ContractFile:
    """Return the content of a contract file.

    :raises UsageError: when it is not one.
    """
    return _made(path, _load(path))


def _load(path: Path) -> Any:
    try:
        with path.open("rb") as stream:
            return yaml_text.load(stream.read(FILE_LIMIT))
    except (OSError, yaml.YAMLError) as error:
        detail = " ".join(str(error).split())
        raise UsageError(f'the contract file "{path}" cannot be read: {detail}') from error


def _made(path: Path, content: Any) -> ContractFile:
    problem = _problem(content)
    if problem:
        raise UsageError(f'the contract file "{path}" {problem}')
    return ContractFile(
        configs=content.get("configs") or {},
        tool=content.get("tool") or "",
        may_change=tuple(map(Path, content.get("may-change") or ())),
        options=content.get("options") or {},
        not_tried=content.get("not-tried") or {},
        exceptions=content.get("exceptions") or {},
        path=path,
    )


def _problem(content: Any) -> str:
    """Return the problem of a contract file's content; empty when there is none."""
    if not isinstance(content, dict):
        return f"is no map; expected one of the keys {', '.join(sorted(_KEYS))}"
    for given, expected, kind in (
        (content, _KEYS, "key"),
        (content.get("configs"), set(ROLES), "config"),
        (content.get("not-tried"), set(LINE_NAMES), "line"),
        (content.get("exceptions"), set(EXCEPTIONS), "exception"),
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
    for key in ("not-tried", "exceptions"):
        if not all(isinstance(each, str) and each for each in (content.get(key) or {}).values()):
            return f'has "{key}" whose reasons are not text'
    return ""
