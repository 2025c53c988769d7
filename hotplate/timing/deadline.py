"""The one module that waits: deadlines on the monotonic clock, and a bounded retry.

Nothing else in the harness sleeps; only the program that runs a build as root, which imports
nothing of it (hotplate/image/supervise.py), has a short wait of its own.
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
    """A deadline for what no guest has a part in, such as QEMU's own answers."""


class Deadline:
    """A point in time that is passed down a call chain, so that waits do not add up.

    :param seconds: from now until the deadline.
    :param what: what is being waited for, as it reads after "waiting for".
    """

    def __init__(self, seconds: float, what: str) -> None:
        self.what = what
        self.seconds = seconds
        self._end = time.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Seconds until the deadline, never negative."""
        return max(0.0, self._end - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether no time is left."""
        return self.left == 0.0

    def extend(self, seconds: float) -> None:
        """Progress was seen: the deadline is now at least ``seconds`` away."""
        self._end = max(self._end, time.monotonic() + seconds)

    def end(self) -> None:
        """Let the deadline pass now: what was waited for is not wanted any more."""
        self._end = time.monotonic()

    def check(self) -> None:
        """Raise :class:`DeadlineExceeded` when the deadline has passed."""
        if self.passed:
            raise DeadlineExceeded(f"gave up waiting for {self.what} after {self.seconds:.0f} s")


class GuestDeadline(Deadline):
    """A deadline for what a guest does, which takes the longer the slower this host is.

    When it would have passed, the host is measured, and the seconds are taken that many times; so
    a host that became slow on the way is known to be, and one that is not costs nothing.

    :param seconds: from now until the deadline, on a host that is not slow.
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
        """Seconds until the deadline, never negative."""
        left = super().left
        if left > 0 or self._final:
            return left
        end = self._begun + self._span * self._measure()
        self._final = end <= time.monotonic()
        self._end = max(self._end, end)
        self.seconds = self._end - self._begun
        return super().left

    def extend(self, seconds: float) -> None:
        """Progress was seen: the deadline is now at least ``seconds`` away."""
        super().extend(seconds)
        if self._end <= time.monotonic() + seconds:
            self._begun, self._span, self._final = time.monotonic(), seconds, seconds <= 0
            self.seconds = seconds

    def end(self) -> None:
        """Let the deadline pass now: what was waited for is not wanted any more."""
        super().end()
        self._final = True


def retry(attempt: Callable[[bool], T | None], deadline: Deadline, *, every: float = 0.1) -> T:
    """Call ``attempt(last_try)`` until it returns something other than None.

    For the few things that tell nobody when they change.  The last call gets ``True``, so that it
    can say in full why it is not content.

    :param every: seconds between two calls.
    :raises DeadlineExceeded: when the last call returned None too.
    """
    while True:
        last_try = deadline.passed
        result = attempt(last_try)
        if result is not None:
            return result
        if last_try:
            deadline.check()
        time.sleep(min(every, max(deadline.left, 0.001)))


class Pauses:
    """Pauses between questions to somebody who tells nothing by himself.

    Each is longer than the one before, up to a longest one, and short again when something has
    happened.

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
        """Return the seconds until the next question."""
        seconds, self._next = self._next, min(self._longest, self._next * 1.5)
        return seconds

    def reset(self) -> None:
        """Ask more often again: something has happened."""
        self._next = self._first
