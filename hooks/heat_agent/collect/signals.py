"""How the agent handles SIGHUP, SIGTERM and SIGINT."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# Both derive from BaseException: "except Exception" around a source must not catch them.
class Hangup(BaseException):
    """SIGHUP: restart."""


class Ended(BaseException):
    """SIGTERM or another signal, *number*: exit."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Raise signals as exceptions while entered; a SIGHUP can be deferred."""

    def __init__(self) -> None:
        self._put_off = False
        self._waiting = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        wanted = {
            signal.SIGHUP: self._hang_up,
            signal.SIGTERM: self._end,
            signal.SIGINT: self._end,
        }
        self._before = {number: signal.signal(number, act) for number, act in wanted.items()}
        return self

    def __exit__(self, *_exception: object) -> None:
        for number, act in self._before.items():
            signal.signal(number, act)

    def put_off(self) -> None:
        """Defer SIGHUP until allow(), so that a command can finish."""
        self._put_off = True

    def allow(self) -> None:
        """Raise Hangup if a SIGHUP was deferred, and from now on at once."""
        self._put_off = False
        if self._waiting:
            self._waiting = False
            raise Hangup

    def _hang_up(self, _number: int, _frame: object) -> None:
        if self._put_off:
            self._waiting = True
        else:
            raise Hangup

    def _end(self, number: int, _frame: object) -> None:
        raise Ended(number)


def die_of(number: int) -> None:
    """End this process by the signal's default action."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
