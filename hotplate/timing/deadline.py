"""The one module that waits: deadlines on the monotonic clock, and a bounded retry.

Nothing else in the harness sleeps, except for a short wait in hotplate/image/supervise.py, which
runs a build as root and imports nothing from the harness.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from hotplate.errors import WaitedTooLong
from hotplate.timing import host_speed

T = TypeVar("T")


class DeadlineExceeded(WaitedTooLong):
    """A deadline passed; ``str()`` says which."""


class HostTooSlow(DeadlineExceeded):
    """A deadline passed for work in which no guest takes part, such as QEMU's own answers."""


class Deadline:
    """A point in time that is passed down a call chain, so that waits do not add up.

    :param seconds: from now until the deadline.
    :param what: the awaited event, as it reads after "waiting for".
    """

    def __init__(self, seconds: float, what: str) -> None:
        self.what = what
        self.seconds = seconds
        self._end = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Return the seconds until the deadline, never negative."""
        return max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        """Return True when no time is left."""
        return self.left == 0.0

    def extend(self, seconds: float) -> None:
        """Move the deadline to at least ``seconds`` from now, after progress was seen."""
        self._end = max(self._end, time.monotonic() + seconds)

    def end(self) -> None:
        """Let the deadline pass now, because the caller no longer waits."""
        self._end = time.monotonic()

    def check(self) -> None:
        """Raise :class:`DeadlineExceeded` when the deadline has passed."""
        if self.passed:
            raise DeadlineExceeded(f"gave up waiting for {self.what} after {self.seconds:.0f} s")


class GuestDeadline(Deadline):
    """A deadline for a guest's work, stretched when this host is slow.

    The host is measured when the deadline would pass, and the seconds are multiplied by the
    result. A host that became slow meanwhile is thus noticed, and a fast one costs nothing.

    :param seconds: from now until the deadline, on a host of normal speed.
    :param measure: how much slower this host is now, 1.0 or more; see
        :func:`hotplate.timing.host_speed.factor`.
    """

    def __init__(
        self, seconds: float, what: str, *, measure: Callable[[], float] = host_speed.factor
    ) -> None:
        super().__init__(seconds, what)
        self._measure = measure
        self._begun = time.monotonic()
        self._span = seconds
        self._final = seconds <= 0

    @property
    def left(self) -> float:
        """Return the seconds until the deadline, never negative."""
        left = super().left
        if left > 0 or self._final:
            return left
        end = self._begun + self._span * self._measure()
        # When even the stretched deadline has passed, the host is not measured again.
        self._final = end <= time.monotonic()
        self._end = max(self._end, end)
        self.seconds = self._end - self._begun
        return super().left

    def extend(self, seconds: float) -> None:
        """Move the deadline to at least ``seconds`` from now, after progress was seen."""
        super().extend(seconds)
        if self._end <= time.monotonic() + seconds:
            self._begun, self._span, self._final = time.monotonic(), seconds, seconds <= 0
            self.seconds = seconds

    def end(self) -> None:
        """Let the deadline pass now, because the caller no longer waits."""
        super().end()
        self._final = True


def retry(attempt: Callable[[bool], T | None], deadline: Deadline, *, every: float = 0.1) -> T:
    """Call ``attempt(last_try)`` until it returns something true.

    For the few things that send no event when they change. The last call gets ``True``, so that it
    can report in full why it is not content.

    :param every: seconds between two calls.
    :raises DeadlineExceeded: when the last call returned nothing true either.
    """
    while True:
        last_try = deadline.passed
        result = attempt(last_try)
        if result:
            return result
        if last_try:
            deadline.check()
        # Not past the deadline, so that the last call comes in time.
        time.sleep(min(every, max(deadline.left, 0.001)))


class Pauses:
    """Pauses between polls of something that sends no events.

    Each pause is longer than the one before, up to ``longest``; :meth:`reset` makes them short
    again.

    >>> pauses = Pauses(1.0, longest=3.0)
    >>> [pauses.next() for _ in range(4)]
    [1.0, 1.5, 2.25, 3.0]

    :param first: seconds.
    :param longest: seconds.
    """

    def __init__(self, first: float, *, longest: float) -> None:
        self._first = self._next = first
        self._longest = longest

    def next(self) -> float:
        """Return the seconds until the next poll."""
        seconds, self._next = self._next, min(self._longest, self._next * 1.5)
        return seconds

    def reset(self) -> None:
        """Poll more often again, because something has happened."""
        self._next = self._first
