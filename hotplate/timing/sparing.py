"""Throttle work whose cost grows with the number of cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHARE = 20
"""Pause after each run, as a multiple of the run's duration."""


class Sparing:
    """Keeps repeated work to a small part of the time, however long one run takes.

    Writing all verdicts after each case then costs as small a part of ten thousand cases as of
    ten.

    ::

        sparing = Sparing()
        for case in cases:
            ...
            if sparing.due:
                with sparing.doing():
                    write_all()

    :param clock: seconds, for tests.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock()

    @property
    def due(self) -> bool:
        """Return True when the work may be done now."""
        return self._clock() >= self._next

    @contextmanager
    def doing(self) -> Iterator[None]:
        """Do the work, and measure how long it takes."""
        began = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            self._next = ended + SHARE * (ended - began)
