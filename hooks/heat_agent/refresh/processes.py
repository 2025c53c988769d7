"""End a script with all its descendants."""

from __future__ import annotations

import contextlib
import os
import signal

#: Maximum searches for processes that were started meanwhile.
ROUNDS = 10


def kill(pid: int) -> None:
    """End the process *pid* and all its descendants with SIGKILL.

    They are stopped first, so that none of them starts another while they are counted.
    """
    family: set[int] = set()
    # Until a search finds no more: one may have been started before its parent was stopped.
    for _ in range(ROUNDS):
        added = ({pid} | _below(pid)) - family
        if not added:
            break
        _signal(added, signal.SIGSTOP)
        family |= added
    # SIGKILL ends stopped processes, too.
    _signal(family, signal.SIGKILL)


def _signal(pids: set[int], number: int) -> None:
    for pid in pids:
        # It may have ended meanwhile.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _below(pid: int) -> set[int]:
    """Return the ids of all processes that descend from *pid*, by proc(5)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(_parent(name), []).append(int(name))
    below: set[int] = set()
    left = [pid]
    while left:
        here = children.get(left.pop(), [])
        left += (each for each in here if each not in below)
        below.update(here)
    return below


def _parent(name: str) -> int:
    """Return the parent's id of the process *name*, 0 when it is gone."""
    try:
        with open(f"/proc/{name}/stat", "rb") as stream:
            # The name, in parentheses, may hold blanks and parentheses itself.
            return int(stream.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0
