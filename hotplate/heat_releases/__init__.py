"""The releases of OpenStack Heat that run in this process."""

from __future__ import annotations

import importlib.metadata

#: The oldest release whose engine runs on threads of the system, and the newest that is tested.
OLDEST, NEWEST = 26, 27


def installed_version() -> str:
    """Return the version of the installed Heat, "" when there is none.

    >>> installed_version().count(".")
    2
    """
    try:
        return importlib.metadata.version("openstack-heat")
    except importlib.metadata.PackageNotFoundError:
        return ""


def installed_release() -> int:
    """Return the release of the installed Heat: the first number of its version; 0 for none."""
    return int(installed_version().partition(".")[0] or 0)
