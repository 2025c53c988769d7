"""A list of checks that are known to fail, each with its tracker and the date until which it may.

::

    - pattern: net/*
      tracker: https://example.org/issues/12
      snooze: 2026-12-31
      arches: [aarch64]

The keys are those of ``kola-denylist.yaml`` (coreos-assembler, ``mantle/kola/harness.go``). Unlike
there, a listed check always runs (kola: ``warn: true``), and an entry has to have a date.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from hotplate import yaml_text
from hotplate.errors import UsageError

REQUIRED = ("pattern", "tracker", "snooze")
KEYS = (*REQUIRED, "arches", "warn")


@dataclass(frozen=True)
class KnownFailure:
    """One entry.

    :param pattern: of names of checks, with ``*`` and ``?``.
    :param tracker: a URL, or another name of the report about it.
    :param snooze: the last day on which the failure counts as known, as YYYY-MM-DD.
    :param arches: the architectures on which it does; none for all.
    """

    pattern: str
    tracker: str
    snooze: str
    arches: tuple[str, ...] = ()

    def is_about(self, name: str, architecture: str) -> bool:
        """Return True for a check that it names, on this architecture."""
        return fnmatchcase(name, self.pattern) and (not self.arches or architecture in self.arches)

    def has_expired(self, today: datetime.date) -> bool:
        """Return True after its last day."""
        return today > datetime.date.fromisoformat(self.snooze)


def read(path: Path) -> tuple[KnownFailure, ...]:
    """Read a file of known failures.

    :raises UsageError: when it cannot be read, and for an invalid entry, with its number.
    """
    try:
        content = yaml_text.load(path.read_bytes())
    except OSError as error:
        raise UsageError(
            f'the known failures in "{path}" cannot be read: {error.strerror}'
        ) from error
    except yaml.YAMLError as error:
        why = " ".join(str(error).split())
        raise UsageError(f'the known failures in "{path}" cannot be read: {why}') from error
    if content is None:
        return ()
    if not isinstance(content, list):
        raise UsageError(f'the known failures in "{path}" are no list; expected "- pattern: NAME"')
    return tuple(
        _entry(each, f'entry {number} of "{path}"') for number, each in enumerate(content, start=1)
    )


def _entry(content: Any, place: str) -> KnownFailure:
    if not isinstance(content, dict):
        raise UsageError(f"{place} is no map; expected {', '.join(REQUIRED)}")
    for key in content:
        if key not in KEYS:
            raise UsageError(f'{place}: "{key}" is not known; expected {", ".join(KEYS)}')
    for key in REQUIRED:
        if not content.get(key):
            raise UsageError(f'{place} has no "{key}"; expected {", ".join(REQUIRED)}')
    if content.get("warn", True) is not True:
        raise UsageError(f'{place}: "warn" is not true, and a check that is listed always runs')
    # YAML itself reads a date without quotes.
    snooze = str(content["snooze"])
    try:
        datetime.date.fromisoformat(snooze)
    except ValueError:
        raise UsageError(f'{place}: "snooze" is "{snooze}"; expected a date, YYYY-MM-DD') from None
    arches = content.get("arches") or []
    if not isinstance(arches, list) or not all(isinstance(each, str) for each in arches):
        raise UsageError(f'{place}: "arches" is no list of architectures')
    return KnownFailure(str(content["pattern"]), str(content["tracker"]), snooze, tuple(arches))


def entry_for(
    name: str, known: Iterable[KnownFailure], *, architecture: str
) -> KnownFailure | None:
    """Return the first entry about a check, None when there is none."""
    return next((each for each in known if each.is_about(name, architecture)), None)
