"""A time limit for a series of steps."""

from __future__ import annotations

import time


class Deadline:
    """*step* seconds for each step, *whole* seconds in total."""

    def __init__(self, step: float, whole: float) -> None:
        self.step = step
        self._end = time.monotonic() + whole

    def left(self) -> float:
        """Return the seconds allowed for the next step. Raises TimeoutError if there are none."""
        remaining = self._end - time.monotonic()
        if remaining <= 0:
            raise TimeoutError
        return min(self.step, remaining)
