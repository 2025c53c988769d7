"""The pauses between rounds."""

from __future__ import annotations

import os

GROWTH = 4
#: While a server is in trouble, pauses grow up to GROWTH times the longest pause, but at most this
#: many seconds, or the longest pause if that is more.
LONGEST_TROUBLED = 300.0


class Pace:
    """Pauses that double from *shortest* to *longest* seconds.

    They start again at the shortest when something changed after a round without changes, so that
    dependent deployments are seen soon; a source that always changes does not keep them short.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = shortest
        self._longest = max(shortest, longest)
        self._next = shortest
        self._was_fresh = False

    def after(self, *, fresh: bool, troubled: bool, wait: float | None = None) -> float:
        """Return the seconds until the next round.

        fresh: whether a change was processed. troubled: whether a server failed or is overloaded;
        the pause is then randomly reduced by up to half, so that machines do not poll in step.
        wait: the seconds that the server asked for, or None.
        """
        limit = self._longest
        if troubled:
            limit = max(limit, min(GROWTH * self._longest, LONGEST_TROUBLED))
        if fresh and not self._was_fresh:
            self._next = self._shortest
        self._was_fresh = fresh
        pause = min(self._next, limit)
        self._next = min(2 * pause, limit)
        if not troubled:
            return pause
        if wait is not None and wait > pause:
            # Never earlier than the server asked for, and not at the same moment on all machines.
            return wait * (1 + chance() / 4)
        return pause * (0.5 + chance() / 2)


def chance() -> float:
    """Return a random number from 0 to 1, without the cost of importing random."""
    return int.from_bytes(os.urandom(4), "big") / (1 << 32)
