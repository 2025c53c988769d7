"""Restore the names of systemd's units that its console cuts to fit in 80 columns.

A long line is cut in its middle, at an ellipsis: ``Failed to start cloud-config.serv…tings
specified in cloud-config.`` is about cloud-config.service.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from hotplate.verdict import health

CUT = re.compile(r"\u2026|\.\.\.")
"""Matches the cut in a long line of systemd's; three dots where the locale has no ellipsis."""

_NAME = re.compile(
    r"(?<![\w@\\:.-])[\w@\\:-][\w@\\:.-]*"
    r"\.(?:service|socket|target|mount|automount|swap|device|timer|path|slice|scope)(?![\w.-]|\u2026)"
)
COMMON = (*health.UNITS, "systemd-networkd-wait-online.service")
"""Units that are considered even if their full names were not seen."""


def names_in(text: str) -> list[str]:
    """Return the full names of units in a line."""
    return _NAME.findall(text)


def whole(shown: str, names: Iterable[str]) -> str:
    """Return the unit's name that systemd shows as ``NAME - Description``, cut or not.

    >>> whole("cloud-config.serv…tings specified in cloud-config.", ["cloud-config.service"])
    'cloud-config.service'

    :param shown: the words behind "Failed to start" or "Starting".
    :param names: the full names seen; when not exactly one fits, ``shown`` is returned as it is.
    """
    name, described, _ = shown.partition(" - ")
    begins, *rest = CUT.split(name, maxsplit=1)
    if not rest:
        return name
    ends = rest[0] if described else ""
    fitting = {each for each in names if each.startswith(begins) and each.endswith(ends)}
    return fitting.pop() if len(fitting) == 1 and begins else shown
