"""A directory of diskimage-builder elements, and readers of its files."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from hotplate import yaml_text
from hotplate.errors import UsageError
from hotplate.lint.finding import LintFinding

#: The directories whose scripts diskimage-builder runs.
PHASES = (
    *("root.d", "extra-data.d", "pre-install.d", "install.d", "post-install.d", "post-root.d"),
    *("block-device.d", "pre-finalise.d", "finalise.d", "cleanup.d"),
)

KNOWN_DIRECTORIES = frozenset((*PHASES, "environment.d"))

#: Files at the top of an element with a meaning, here or to diskimage-builder.
KNOWN_FILES = (
    r"README\.rst|element-deps|element-provides|package-installs\.(yaml|json)|pkg-map|svc-map"
    r"|source-repository-[\w-]+|block-device-(default|[\w-]+)\.yaml|no-final-image\S*"
    r"|heat-config-hooks|__init__\.py"
)

#: Limit of the bytes of a file that is searched for names.
TEXT_LIMIT = 1 << 20

#: Limit of the files of an element that are searched for names.
TEXTS_LIMIT = 1000

#: Files that do not mark a directory as an element, as a directory of elements has them too.
_NO_SIGN = {"README.rst", "__init__.py"}


@dataclass
class Collection:
    """The elements under one directory, and the others that they may name.

    :param directory: the directory of the elements.
    :param hooks: the directory of the programs named by ``heat-config-hooks``; None for any.
    :param others: directories of other elements that may be dependencies.
    :param only: the one element of the directory to check; None for all.
    """

    directory: Path
    hooks: Path | None = None
    others: tuple[Path, ...] = ()
    only: Path | None = None
    elements: list[Path] = field(init=False)

    def __post_init__(self) -> None:
        self.elements = [self.only] if self.only else list(element_directories(self.directory))

    @classmethod
    def at(cls, path: Path, *, hooks: Path | None, others: tuple[Path, ...]) -> Collection:
        """Return the collection at a path, which is one element or a directory of them.

        :raises UsageError: when it is neither.
        """
        path = path.resolve()
        if not path.is_dir():
            raise UsageError(f'"{path}" is not a directory; expected one with elements')
        if is_element(path):
            return cls(path.parent, hooks, others, only=path)
        if not any(is_element(each) for each in element_directories(path)):
            raise UsageError(
                f'"{path}" is neither an element nor a directory of elements',
                hint="name the directory whose folders are elements: hotplate lint elements",
            )
        return cls(path, hooks, others)

    @property
    def path(self) -> Path:
        """Return the element, or the directory with all of them."""
        return self.only or self.directory

    def names(self) -> set[str]:
        """Return the names of all possible dependencies: elements, and the names they provide."""
        names: set[str] = set()
        for directory in (self.directory, *self.others):
            for element in directory.iterdir():
                if element.is_dir():
                    names.add(element.name)
                    names.update(name for _, name in names_in(element / "element-provides"))
        return names

    @cached_property
    def texts(self) -> Mapping[Path, Mapping[Path, str]]:
        """Return the text of each element's files except pages, to search them for names."""
        return {element: dict(_texts(element)) for element in self.elements}

    def names_file(self, element: Path, name: str, *, besides: Path) -> bool:
        """Return True when another file of an element contains a file's name."""
        # A whole name: not a part of a longer one, such as "10-a" of "110-a" or of "10-a-b".
        pattern = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w-])")
        texts = self.texts[element].items()
        return any(pattern.search(text) for path, text in texts if not path.is_relative_to(besides))


def element_directories(directory: Path) -> Iterator[Path]:
    """Yield the directories in a directory that may be elements, sorted."""
    for path in sorted(directory.iterdir()):
        if path.is_dir() and not path.name.startswith((".", "__")):
            yield path


def is_element(path: Path) -> bool:
    """Return True for a directory with the typical files of an element at its top."""
    for child in path.iterdir():
        if child.is_dir():
            sign = child.name in KNOWN_DIRECTORIES
        else:
            sign = child.name not in _NO_SIGN and bool(re.fullmatch(KNOWN_FILES, child.name))
        if sign:
            return True
    return False


def _texts(element: Path) -> Iterator[tuple[Path, str]]:
    paths = (path for path in sorted(element.rglob("*")) if path.is_file())
    for path, _ in zip(paths, range(TEXTS_LIMIT), strict=False):
        if not path.name.startswith("README"):
            with path.open("rb") as stream:
                yield path, stream.read(TEXT_LIMIT).decode("utf-8", "replace")


def names_in(file: Path) -> list[tuple[int, str]]:
    """Return the lines of element-deps or element-provides, each with its number, from 1.

    To diskimage-builder every line but an empty one is a name, also a comment or several words.
    There are none if there is no file.
    """
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return [(number, line.strip()) for number, line in enumerate(lines, 1) if line.strip()]


def uncommented(line: str) -> str:
    """Return a line without its comment."""
    return line.partition("#")[0]


def line_with(file: Path, pattern: str) -> int | None:
    """Return the number of the first line that matches a pattern; None when no line does."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((number for number, line in enumerate(lines, 1) if re.search(pattern, line)), None)


class DataError(Exception):
    """A data file that cannot be read, or has a duplicate key.

    :ivar line: the line number, from 1; None when unknown.
    """

    def __init__(self, reason: str, mend: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.mend = mend
        self.line = line


_TWICE = "put both under one key, or remove one"


def _unique_pairs(pairs: list[tuple[object, object]]) -> dict[object, object]:
    result: dict[object, object] = {}
    for key, value in pairs:
        if key in result:
            raise DataError(f'the key "{key}" appears twice, and the last one wins', _TWICE)
        result[key] = value
    return result


class _UniqueLoader(yaml.SafeLoader):
    """YAML in which a duplicate key is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen = set()
        for key_node, _ in node.value:
            # Keys may be lists or maps, which only a deep construction fills at once.
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                continue  # SafeLoader has an error message for it
            if key in seen:
                reason = f'the key "{key}" appears twice, and the last one wins'
                raise DataError(reason, _TWICE, key_node.start_mark.line + 1)
            seen.add(key)
        return super().construct_mapping(node, deep)


def load(file: Path) -> Any:
    """Return the content of a JSON or YAML file; pkg-map is JSON, svc-map YAML.

    :raises DataError: it is neither, or has a duplicate key.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"this is no text in UTF-8: {error.reason}", "write it in UTF-8") from error
    # svc-map has no suffix.
    if file.suffix in (".yaml", ".yml") or file.name == "svc-map":
        return _yaml(text)
    try:
        return json.loads(text, object_pairs_hook=_unique_pairs)
    except json.JSONDecodeError as error:
        raise DataError(f"this is not JSON: {error.msg}", "mend its JSON", error.lineno) from error


def _yaml(text: str) -> Any:
    try:
        return yaml_text.load(text, _UniqueLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = f"this is not YAML: {' '.join(str(error).split())}"
        raise DataError(reason, "mend its YAML", mark.line + 1 if mark else None) from error


def finding(
    path: Path, rule: str, reason: str, mend: str, *, line: int | None = None
) -> LintFinding:
    """Return a finding of the element lint."""
    return LintFinding(path, f"element/{rule}", reason, mend, line)
