"""Select and order the scripts of a phase's directory by dib-run-parts' rules.

The rules are those of ``dib-run-parts`` in dib-utils: executable files, and links to such, whose
name matches RUN_PARTS_REGEX, in the order of ``LC_ALL=C sort -n``.
"""

from __future__ import annotations

import os
import re

#: The pattern of script names when RUN_PARTS_REGEX is not set.
NAMES = "^[0-9A-Za-z_-]+$"

ENVIRONMENT_NAMES = re.compile("[0-9A-Za-z_.-]+")
# NAME_MAX: a fraction has no more digits.
LONGEST_NAME = 255

_NUMBER = re.compile(r"[ \t]*(-?)([0-9]*)(?:\.([0-9]*))?")
_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "digit": "0-9",
    "lower": "a-z",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
    "blank": " \t",
    "punct": r"!-/:-@\[-`{-~",
}


def scripts(directory: str, pattern: str | None = None) -> list[str]:
    """Return the names of the scripts in *directory*, in the order in which they run.

    *pattern* is an extended regular expression (RUN_PARTS_REGEX). Raises OSError when the directory
    cannot be read, ValueError for an invalid pattern.
    """
    matches = _compiled(pattern or NAMES).search
    names = [name for name in os.listdir(directory) if "\n" not in name and matches(name)]
    return sorted((name for name in names if _runs(os.path.join(directory, name))), key=_place)


def environment_files(directory: str) -> list[str]:
    """Return the paths of the files that a shell reads before the scripts of *directory*."""
    beside = os.path.join(directory, os.pardir, "environment.d")
    try:
        names = os.listdir(beside)
    except OSError:
        return []
    paths = [os.path.join(beside, name) for name in names if ENVIRONMENT_NAMES.fullmatch(name)]
    # By their bytes: dib-run-parts sorts whole paths, which never begin with a number.
    return sorted(filter(os.path.isfile, paths), key=os.fsencode)


def _compiled(pattern: str) -> re.Pattern[str]:
    # Python's re has none of POSIX's classes.
    for name, members in _CLASSES.items():
        pattern = pattern.replace(f"[:{name}:]", members)
    try:
        return re.compile(pattern)
    except re.error:
        raise ValueError(f'RUN_PARTS_REGEX "{pattern}" is not a regular expression') from None


def _runs(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _place(name: str) -> tuple[int, bytes]:
    """Return the key of ``sort -n`` in the C locale: the number in front, then the bytes."""
    match = _NUMBER.match(name)
    assert match is not None
    sign, whole, fraction = match.groups()
    # An integer of a fixed scale, since a float would round long fractions.
    number = int(f"0{whole}{(fraction or '').ljust(LONGEST_NAME, '0')}")
    return (-number if sign else number), os.fsencode(name)
