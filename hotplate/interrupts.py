"""Signals that mean "end", as an exception in the main thread, so that the run reports them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Self

from hotplate.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

#: The start of the file names of Python's import system.
IMPORT_SYSTEM = "<frozen importlib"

#: The delay until a signal that arrived within the import system is tried again.
AGAIN_SECONDS = 0.01


class Interrupts:
    """Turns :data:`SIGNALS` into :class:`~hotplate.errors.Interrupted`; a context manager.

    It does so only where :meth:`allowed`, so that results are written to their end, and never
    within Python's import system. A signal that was ignored at the start (``nohup``, ``&`` in a
    script) stays ignored. SIGALRM is used for the retry.

    :ivar came: the first signal received, 0 while there is none.
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
        before = signal.signal(signal.SIGALRM, self._on_alarm)
        self._before.callback(signal.signal, signal.SIGALRM, before)
        # Undone first: an alarm without its handler would end the process.
        self._before.callback(signal.setitimer, signal.ITIMER_REAL, 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._before.close()

    def check(self) -> None:
        """Raise Interrupted when a signal has arrived."""
        if self.came:
            raise Interrupted(self.came)

    @contextlib.contextmanager
    def allowed(self) -> Iterator[None]:
        """End the block by an exception when a signal arrives, or has arrived before.

        :raises Interrupted: names the signal.
        """
        self._allowed = True
        try:
            self.check()
            yield
        finally:
            self._allowed = False

    @contextlib.contextmanager
    def postponed(self) -> Iterator[None]:
        """Postpone signals until the end of the block; one that arrives is only recorded."""
        before, self._allowed = self._allowed, False
        try:
            yield
        finally:
            self._allowed = before

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.came = self.came or number
        if not self._allowed:
            return
        # An exception there would leave the import system's locks held: other threads' imports
        # would wait for ever.
        if frame is not None and frame.f_code.co_filename.startswith(IMPORT_SYSTEM):
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
            return
        raise Interrupted(number)

    def _on_alarm(self, _number: int, frame: FrameType | None) -> None:
        if self.came:
            self._on_signal(self.came, frame)
