"""Threads whose faults are not lost: whoever waits for what happens gets them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hotplate.events.log import EventLog


class Background(threading.Thread):
    """A thread of hotplate's own, which the end of the process does not wait for.

    What it raises is a fault of the event log (:meth:`EventLog.fail`): the guest, which somebody
    waits for meanwhile, has no part in it.

    ::

        reader = Background(events, self._read, channel, name="console")
        reader.start()

    :param events: where it is looked for.
    :param work: what it does, with ``arguments``.
    :param name: by which a person is told of it.
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
    """Return a function that does the work, and keeps in ``events`` what it raises.

    For what another's thread calls.
    """

    def run(*arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:  # kept, and raised where somebody waits
            events.fail(error)

    return run
