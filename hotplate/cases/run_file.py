"""A run file: the arguments of ``hotplate test`` in YAML.

::

    images: [web.qcow2, "builds/*.qcow2", "https://example.org/db.qcow2"]
    releases: [bookworm, trixie]
    templates:
      - small.yaml
      - template: large.yaml
        name: large
        parameters: {port: 80}
        environments: [lab.yaml]
        expect: {outputs: {port: "80"}}
    checks: [checks, "smoke.sh"]
    goss: goss.yaml
    known_failures: known-failures.yaml
    network_data: bare-metal.json
    datasource: [openstack, ec2]
    firmware: auto
    cpu: [x86-64-v1, Nehalem]

Names of files are relative to the run file.
"""

from __future__ import annotations

import difflib
import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from hotplate.cases.images import ImageWord, image_word
from hotplate.cases.table import TemplateChoice
from hotplate.errors import HotplateError, UsageError
from hotplate.image import image_set
from hotplate.image.inspect import find
from hotplate.settings import Datasource, FirmwareChoice, MachineChoice
from hotplate.stacks import document, expect

#: The settings of cases, with the values that are known before QEMU is asked; none for any.
SETTINGS: Mapping[str, Sequence[str]] = {
    "machine": [each.value for each in MachineChoice],
    "cpu": [],
    "datasource": [each.value for each in Datasource],
    "firmware": [each.value for each in FirmwareChoice],
}
FILES = ("goss", "known_failures", "network_data")
TOP = ("images", "releases", "templates", "checks", *FILES, *SETTINGS)
OF_A_TEMPLATE = ("template", "name", "parameters", "environments", "expect")


@dataclass(frozen=True)
class RunFile:
    """The content of a run file.

    :param releases: the releases to build an image of.
    :param settings: by the name of the setting, its values.
    :param goss: a file; None for none, as for ``known_failures`` and ``network_data``.
    """

    images: Sequence[ImageWord] = ()
    releases: Sequence[str] = ()
    templates: Sequence[TemplateChoice] = ()
    settings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    checks: Sequence[Path] = ()
    goss: Path | None = None
    known_failures: Path | None = None
    network_data: Path | None = None


def read(path: Path) -> RunFile:
    """Read a run file.

    :raises UsageError: when it does not exist, and for invalid content, with its line.
    """
    try:
        content = document.compose(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        why = " ".join(str(error).split())
        raise UsageError(f'the run file "{path}" cannot be read: {why}') from error
    return _RunFileReader(path, content).read()


class _RunFileReader:
    """Reads a composed document, so that each error has its line."""

    def __init__(self, path: Path, content: document.Composed) -> None:
        self._path = path
        self._content = content

    def read(self) -> RunFile:
        """Read all of it."""
        root = self._content.root
        if root is None:
            raise UsageError(f'the run file "{self._path}" is empty', hint=_words(TOP))
        top = self._map(root, "the run file", TOP)
        return RunFile(
            # Without repetitions, which would be cases of their own.
            images=[*dict.fromkeys(self._images(top))],
            releases=[
                *dict.fromkeys(
                    self._text(each, "the name of a release")
                    for each in self._list(top, "releases")
                )
            ],
            templates=[self._template(each) for each in self._list(top, "templates")],
            settings={
                name: [self._word(each, words) for each in self._list(top, name)]
                for name, words in SETTINGS.items()
                if name in top
            },
            checks=[
                self._path.parent / self._text(each, "the name of a check")
                for each in self._list(top, "checks")
            ],
            **{name: self._file(top[name]) for name in FILES if name in top},
        )

    def _images(self, top: Mapping[str, yaml.Node]) -> Iterator[ImageWord]:
        for node in self._list(top, "images"):
            name = self._text(node, "the name of an image")
            if isinstance(image_word(name), str):
                # Only for its errors, which get a line number here.
                with self._at(node):
                    image_set.of_url(name)
                yield name
                continue
            if not glob.has_magic(name):
                with self._at(node):
                    yield find(self._path.parent / name)
                continue
            # Path.glob takes no absolute pattern.
            names = sorted(glob.glob(name, root_dir=self._path.parent, recursive=True))  # noqa: PTH207
            if not names:
                raise self._wrong(node, f'no image matches "{name}"')
            yield from (find(self._path.parent / each) for each in names)

    def _template(self, node: yaml.Node) -> TemplateChoice:
        if isinstance(node, yaml.ScalarNode):
            return TemplateChoice(self._file(node))
        keys = self._map(node, "a template", OF_A_TEMPLATE)
        if "template" not in keys:
            raise self._wrong(node, 'a template has no "template"; expected the name of a file')
        named = self._content.plain(keys["parameters"]) if "parameters" in keys else {}
        if not isinstance(named, dict):
            raise self._wrong(keys["parameters"], '"parameters" is no map')
        name = self._text(keys["name"], "a name") if "name" in keys else ""
        return TemplateChoice(
            self._file(keys["template"]),
            tuple(self._file(each) for each in self._list(keys, "environments")),
            named,
            name,
            self._expected(keys.get("expect")),
        )

    def _expected(self, node: yaml.Node | None) -> expect.Expected | None:
        if node is None:
            return None
        with self._at(node):
            return expect.parse(self._path, self._content.plain(node))

    def _file(self, node: yaml.Node) -> Path:
        path = self._path.parent / self._text(node, "the name of a file")
        if not path.is_file():
            raise self._wrong(node, f'the file "{path}" does not exist or is not a file')
        return path

    def _word(self, node: yaml.Node, words: Sequence[str]) -> str:
        word = self._text(node, "a word")
        if words:
            self._one_of(node, word, words)
        return word

    def _list(self, keys: Mapping[str, yaml.Node], name: str) -> list[yaml.Node]:
        """Return the entries of a list; a single value counts as a list of one."""
        node = keys.get(name)
        if node is None:
            return []
        if not isinstance(node, yaml.SequenceNode):
            return [node]
        if not node.value:
            raise self._wrong(node, f'"{name}" is empty')
        return list(node.value)

    def _map(self, node: yaml.Node, what: str, words: Sequence[str]) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self._wrong(node, f"{what} is no map", hint=_words(words))
        keys: dict[str, yaml.Node] = {}
        for key_node, value in node.value:
            key = self._text(key_node, "a word")
            self._one_of(key_node, key, words)
            # PyYAML itself takes the last of several values in silence.
            if key in keys:
                raise self._wrong(key_node, f'"{key}" is there twice; expected each key once')
            keys[key] = value
        return keys

    def _text(self, node: yaml.Node, expected: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise self._wrong(node, f"expected {expected}")
        return str(node.value)

    def _one_of(self, node: yaml.Node, word: str, words: Sequence[str]) -> None:
        if word in words:
            return
        near = difflib.get_close_matches(word, words, n=1)
        meant = f'; did you mean "{near[0]}"?' if near else ""
        raise self._wrong(node, f'"{word}" is not known{meant}', hint=_words(words))

    @contextmanager
    def _at(self, node: yaml.Node) -> Iterator[None]:
        """Add the line to the errors of other modules."""
        try:
            yield
        except HotplateError as error:
            raise self._wrong(node, error.message, hint=error.hint) from error

    def _wrong(self, node: yaml.Node, problem: str, *, hint: str = "") -> UsageError:
        line = node.start_mark.line + 1
        return UsageError(f'line {line} of "{self._path}": {problem}', hint=hint)


def _words(words: Sequence[str]) -> str:
    return f"known: {', '.join(words)}"
