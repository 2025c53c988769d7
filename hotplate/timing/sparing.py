"""When to do again what takes the longer the more there is of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHARE = 20
"""After each time it is left alone for so many times as long as it took."""


class Sparing:
    """Keeps what is done again and again to a small part of the time, however long it takes.

    So writing all verdicts after each one costs little in a command of ten cases and no more, in
    proportion, in one of ten thousand.

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
        """Whether it may be done now."""
        return self._clock() >= self._next

    @contextmanager
    def doing(self) -> Iterator[None]:
        """Do it, and see how long it takes."""
        began = self._clock()
        try:
            yield
        finally:
            ended = self._clock()
            self._next = ended + SHARE * (ended - began)
