"""A check's metadata, in the format of kola's external tests.

::

    #!/bin/bash
    # kola: {"architectures": "x86_64 aarch64", "timeoutMin": 5, "tags": "needs-internet"}

or as YAML in lines that begin with ``##``::

    ## kola:
    ##   architectures: "!s390x"
    ##   description: the clock is right

The format is that of coreos-assembler's ``docs/kola/external-tests.md``.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from hotplate import yaml_text
from hotplate.errors import UsageError

JSON_PREFIX = "# kola:"
YAML_PREFIX = "## kola:"

#: The bytes at the begin of a script that are searched for metadata.
HEAD_BYTES = 1 << 20

#: A check's time limit without ``timeoutMin``; kola's is the same.
DEFAULT_MINUTES = 10

#: A day; a longer limit is taken for a typing error.
MAX_MINUTES = 24 * 60

#: Tags with a meaning here. The names are autopkgtest's restrictions, of which kola has the first.
NEEDS_INTERNET = "needs-internet"
SKIPPABLE = "skippable"

#: Keys with a whitespace-separated list; a "!" at its begin makes it a list of exclusions.
LISTS = ("architectures", "platforms", "distros")

#: Keys that ask for another machine than that of the run.
OF_ANOTHER_MACHINE = (
    "primaryDisk",
    "additionalDisks",
    "minDisk",
    "additionalNics",
    "appendKernelArgs",
    "appendFirstbootKernelArgs",
    "injectContainer",
    "conflicts",
)
KEYS = (
    *LISTS,
    "tags",
    "requiredTag",
    "minMemory",
    "timeoutMin",
    "exclusive",
    "description",
    *OF_ANOTHER_MACHINE,
)


@dataclass(frozen=True)
class GuestFacts:
    """The properties of a guest that decide about checks.

    :param architecture: the kernel's, as ``uname -m`` prints it.
    :param platforms: kola's words for the platform: ``openstack``, and ``qemu`` under QEMU.
    :param distros: ``ID`` of os-release; ``fcos`` and ``rhcos`` where it is one of these.
    :param memory: MiB; 0 when it is not known.
    :param internet: the guest reaches the Internet.
    """

    architecture: str = ""
    platforms: tuple[str, ...] = ("openstack",)
    distros: tuple[str, ...] = ()
    memory: int = 0
    internet: bool = False


@dataclass(frozen=True)
class CheckMetadata:
    """The metadata of a check, with kola's names and defaults.

    :param minutes: the time limit, for all boots of the check together.
    """

    architectures: str = ""
    platforms: str = ""
    distros: str = ""
    tags: tuple[str, ...] = ()
    required_tag: str = ""
    min_memory: int = 0
    minutes: int = DEFAULT_MINUTES
    description: str = ""

    @property
    def skippable(self) -> bool:
        """Return True when exit status 77 means "skipped", as autopkgtest has it."""
        return SKIPPABLE in self.tags

    def why_skipped(self, guest: GuestFacts) -> str:
        """Return why the check does not run in a guest, "" when it does."""
        for name, actual in (
            ("architectures", (guest.architecture,)),
            ("platforms", guest.platforms),
            ("distros", guest.distros),
        ):
            wanted = getattr(self, name)
            if not _is_in(actual, wanted):
                return f'{name} are "{wanted}", and the guest is "{" ".join(actual)}"'
        if self.required_tag:
            return f'it runs only by the tag "{self.required_tag}", which cannot be given here'
        if NEEDS_INTERNET in self.tags and not guest.internet:
            return "it needs the Internet, which no guest of this host reaches"
        if guest.memory and self.min_memory > guest.memory:
            return (
                f"it needs {self.min_memory} MiB of memory, and the guest has {guest.memory} "
                f"(--memory {self.min_memory})"
            )
        return ""


#: Of a check without metadata.
NO_METADATA = CheckMetadata()


def _is_in(actual: tuple[str, ...], wanted: str) -> bool:
    """Return True when a list of kola's allows one of the words.

    >>> _is_in(("x86_64",), "x86_64 aarch64"), _is_in(("x86_64",), "!s390x x86_64")
    (True, False)
    """
    excluding = wanted.startswith("!")
    words = wanted.removeprefix("!").split()
    return not words or excluding != any(each in words for each in actual)


def of_script(program: bytes, *, where: str) -> CheckMetadata | None:
    """Return the metadata in a script, None when it has none.

    :param where: the script, for the sentences.
    :raises UsageError: for metadata that is malformed, or that no run here can honour.
    """
    # A binary may hold these words by chance.
    if not program.startswith(b"#!"):
        return None
    lines = program[:HEAD_BYTES].decode(errors="replace").splitlines()
    for number, line in enumerate(lines, start=1):
        place = f'line {number} of "{where}"'
        if line.startswith(YAML_PREFIX):
            block = [line.removeprefix(YAML_PREFIX)]
            for each in lines[number:]:
                if not each.startswith("## "):
                    break
                block.append(each.removeprefix("##"))
            return parse("\n".join(block), place=place)
        if line.startswith(JSON_PREFIX):
            text = line.removeprefix(JSON_PREFIX)
            try:
                # JSON has to be on one line, and is not read as YAML, as kola does not either.
                return of_map(json.loads(text), place=place)
            except ValueError as error:
                raise UsageError(f"{place}: the metadata of kola is no JSON: {error}") from error
    return None


def parse(text: str, *, place: str) -> CheckMetadata:
    """Return the metadata of a YAML or JSON text.

    :param place: its place, for the sentences.
    :raises UsageError: see :func:`of_script`.
    """
    try:
        content = yaml_text.load(text)
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        raise UsageError(f"{place}: the metadata of kola is no YAML: {why}") from error
    return of_map(content or {}, place=place)


def of_map(content: Any, *, place: str) -> CheckMetadata:
    """Return the metadata of a parsed document.

    :raises UsageError: see :func:`of_script`.
    """
    if not isinstance(content, dict):
        raise UsageError(f"{place}: the metadata of kola is no map")
    for key in content:
        if key not in KEYS:
            near = difflib.get_close_matches(str(key), KEYS, n=1)
            meant = f'; did you mean "{near[0]}"?' if near else ""
            raise UsageError(
                f'{place}: "{key}" is no key of kola\'s metadata{meant}',
                hint=f"known: {', '.join(KEYS)}",
            )
        if key in OF_ANOTHER_MACHINE:
            raise UsageError(
                f'{place}: "{key}" asks for a machine of its own, and all checks run in the one '
                "that is tested"
            )
    if _of(content, "exclusive", bool, place):
        raise UsageError(
            f'{place}: "exclusive" asks for a machine of its own',
            hint="run the check by itself, and leave the key out",
        )
    minutes = _of(content, "timeoutMin", int, place) or DEFAULT_MINUTES
    if not 0 < minutes <= MAX_MINUTES or content.get("timeoutMin") == 0:
        raise UsageError(
            f'{place}: "timeoutMin" is {content["timeoutMin"]}; expected minutes, 1 to '
            f"{MAX_MINUTES}"
        )
    return CheckMetadata(
        architectures=_of(content, "architectures", str, place),
        platforms=_of(content, "platforms", str, place),
        distros=_of(content, "distros", str, place),
        tags=tuple(_of(content, "tags", str, place).split()),
        required_tag=_of(content, "requiredTag", str, place),
        min_memory=_of(content, "minMemory", int, place),
        minutes=minutes,
        description=_of(content, "description", str, place),
    )


def _of(content: Mapping[str, Any], key: str, kind: type[Any], place: str) -> Any:
    """Return a value of the type, or that type's empty value without the key."""
    value = content.get(key, kind())
    # bool is a subclass of int.
    if type(value) is not kind:
        words = {str: "a text", int: "a whole number", bool: "true or false"}
        raise UsageError(
            f'{place}: "{key}" is {json.dumps(value, default=str)}; expected {words[kind]}'
        )
    return value
