"""Threads that report their exceptions to the threads waiting on the event log."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hotplate.events.log import EventLog


class Background(threading.Thread):
    """A daemon thread of hotplate's own; the process does not wait for it at exit.

    An exception in it becomes a fault of the event log (:meth:`EventLog.fail`), because a guest
    that somebody waits for meanwhile did not cause it.

    ::

        reader = Background(events, self._read, channel, name="console")
        reader.start()

    :param events: the log that gets the fault.
    :param work: the function to run, with ``arguments``.
    :param name: the thread's name in messages.
    """

    def __init__(
        self, events: EventLog, work: Callable[..., object], *arguments: Any, name: str
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._events = events
        self._work = work
        self._arguments = arguments

    def run(self) -> None:
        """Do the work."""
        guarded(self._events, self._work)(*self._arguments)


def guarded(events: EventLog, work: Callable[..., object]) -> Callable[..., None]:
    """Return a function that does the work and records its exceptions in ``events``.

    For callbacks that run in a thread of somebody else's.
    """

    def run(*arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:  # recorded, and raised in the thread that waits
            events.fail(error)

    return run
