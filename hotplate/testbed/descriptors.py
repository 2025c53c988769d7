"""The limit of open files: too low a limit is reported before anything is started."""

from __future__ import annotations

import resource

from hotplate.errors import HostError

NEEDED = 256
"""Enough for one server, with Heat and its neighbours, and room to spare."""


def require(limit: int | None = None) -> None:
    """Check the limit of open files.

    :param limit: by default this process's (setrlimit(2), RLIMIT_NOFILE, the soft one).
    :raises HostError: when it is too low for a run.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if soft != resource.RLIM_INFINITY and soft < NEEDED:
        raise HostError(
            f"this host allows a process {soft} open files, but a run needs {NEEDED}",
            hint="ulimit -n 4096",
        )
