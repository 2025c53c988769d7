"""A file in YAML or JSON, read once for whoever makes a template or expectations of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hotplate.errors import TemplateError, UsageError


@dataclass(frozen=True)
class Document:
    """What is in a file.

    :param content: of JSON types; dates are texts, as Heat takes them.
    :param twice: the first key that is there twice, of which the last one counts, in a sentence;
        "" when there is none.
    """

    path: Path
    content: Any
    twice: str = ""


def read(path: Path) -> Document:
    """Read a file.

    :raises UsageError: when it is not there.
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
    """What is in a YAML file, with the lines that it stands in.

    :param root: None for an empty file.
    :param plain: makes JSON types of a part of it.
    """

    root: yaml.Node | None
    plain: Callable[[yaml.Node], Any]


def compose(path: Path) -> Composed:
    """Read a YAML file for who says what is wrong with it line by line.

    :raises OSError: and ValueError, and YAMLError, when it cannot be read.
    """
    loader = _Loader(path.read_text(encoding="utf-8"))
    root = loader.get_single_node()
    return Composed(root, lambda node: loader.construct_object(node, deep=True))


def _parse(path: Path, text: str) -> Document:
    # JSON is YAML but for tabs, and is read faster by its own parser.
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            doubles: list[str] = []
            content = json.loads(text, object_pairs_hook=lambda pairs: _mapping(pairs, doubles))
            return Document(path, content, _twice(path, doubles[0], "") if doubles else "")
    loader = _Loader(text)
    try:
        content = loader.get_single_data()
    finally:
        loader.dispose()
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
    """Notes a key that is there twice, of which YAML itself would take the last in silence."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.doubles: list[tuple[int, int, str]] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            # What is not one plain word is no key of ours, and others say what is wrong with it.
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag.endswith(":merge"):
                continue
            key, line = key_node.value, key_node.start_mark.line + 1
            if key in lines:
                self.doubles.append((line, lines[key], key))
            lines[key] = line
        mapping: dict[object, object] = super().construct_mapping(node, deep)
        return mapping


# As python-heatclient does: a date without quotes is the text that was written.
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda _, node: str(node.value))
