"""Signals that mean "end", as an exception in the main thread: a run that they end says so."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Self

from hotplate.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns :data:`SIGNALS` into :class:`~hotplate.errors.Interrupted`; a context manager.

    Only where it is :meth:`allowed`: what is being written down comes to its end.  A signal that
    was ignored when we were started (``nohup``, ``&`` in a script) stays ignored.

    :ivar came: the first signal that came, 0 while none has.
    """

    def __init__(self) -> None:
        self.came = 0
        self._before = contextlib.ExitStack()
        self._allowed = False

    def __enter__(self) -> Self:
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                before = signal.signal(number, self._on_signal)
                self._before.callback(signal.signal, number, before)
        return self

    def __exit__(self, *_: object) -> None:
        self._before.close()

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """End what is done here by an exception when a signal comes, or has come before.

        :raises Interrupted: names the signal.
        """
        self._allowed = True
        try:
            if self.came:
                raise Interrupted(self.came)
            yield
        finally:
            self._allowed = False

    @contextlib.contextmanager
    def postponed(self) -> Iterator[None]:
        """Let signals wait for the end of what is done here; one that comes is only kept."""
        before, self._allowed = self._allowed, False
        try:
            yield
        finally:
            self._allowed = before

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self.came = self.came or number
        if self._allowed:
            raise Interrupted(number)
