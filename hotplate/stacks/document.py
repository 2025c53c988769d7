"""A file in YAML or JSON, parsed once for templates and expectations."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hotplate import yaml_text
from hotplate.errors import TemplateError, UsageError


@dataclass(frozen=True)
class Document:
    """The content of a file.

    :param content: of JSON types; dates are texts, as in Heat.
    :param twice: a sentence about the first duplicate key, of which the last value counts;
        "" when there is none.
    """

    path: Path
    content: Any
    twice: str = ""


def read(path: Path) -> Document:
    """Read a file.

    :raises UsageError: when it does not exist.
    :raises TemplateError: when it is neither YAML nor JSON.
    """
    if not path.is_file():
        raise UsageError(f'the file "{path}" does not exist or is not a file')
    try:
        return _parse(path, path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise TemplateError(
            f'the template "{path}" cannot be read as YAML or JSON: {" ".join(str(error).split())}'
        ) from error


@dataclass(frozen=True)
class Composed:
    """The content of a YAML file, with line numbers.

    :param root: None for an empty file.
    :param plain: converts a node to JSON types.
    """

    root: yaml.Node | None
    plain: Callable[[yaml.Node], Any]


def compose(path: Path) -> Composed:
    """Read a YAML file for messages that name lines.

    :raises OSError: and ValueError, and YAMLError, when it cannot be read.
    """
    loader = _Loader(path.read_text(encoding="utf-8"))
    root = yaml_text.compose(loader)
    # deep: lists and maps are filled at once, and not by generators of PyYAML's loader.
    return Composed(root, lambda node: loader.construct_object(node, deep=True))


def _parse(path: Path, text: str) -> Document:
    # JSON is YAML but for tabs, and its own parser is faster.
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError, RecursionError):
            doubles: list[str] = []
            content = json.loads(text, object_pairs_hook=lambda pairs: _mapping(pairs, doubles))
            yaml_text.check(content)
            return Document(path, content, _twice(path, doubles[0], "") if doubles else "")
    loader = _Loader(text)
    content = yaml_text.construct(loader)
    if not loader.doubles:
        return Document(path, content)
    line, before, key = min(loader.doubles)
    return Document(path, content, _twice(path, key, f", in lines {before} and {line}"))


def _mapping(pairs: list[tuple[str, object]], doubles: list[str]) -> dict[str, object]:
    mapping: dict[str, object] = {}
    for key, value in pairs:
        if key in mapping:
            doubles.append(key)
        mapping[key] = value
    return mapping


def _twice(path: Path, key: str, where: str) -> str:
    return f'"{key}" is in "{path}" twice{where}; expected each key once'


class _Loader(yaml.SafeLoader):
    """Notes duplicate keys; YAML itself takes the last one silently."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.doubles: list[tuple[int, int, str]] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            # Keys that are not plain scalars are not ours; other checks report them.
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in lines:
                self.doubles.append((line, lines[key], key))
            lines[key] = line
        mapping: dict[object, object] = super().construct_mapping(node, deep)
        return mapping


# As in python-heatclient: a date without quotes stays the text that was written.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))
