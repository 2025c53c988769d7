"""A server that is restored while the one before it, which has the same id, is still in use."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from hotplate.errors import HotplateError
from hotplate.events.background import Background
from hotplate.events.log import EventLog
from hotplate.testbed.server import Server
from hotplate.timing.deadline import DeadlineExceeded

#: How long a spare server may wait for its use. Its agent waits for the answer to its first poll
#: meanwhile, and an agent gives up after ten seconds.
SPARE_SECONDS = 8.0


class Spare:
    """A server that boots in a thread, on a network of its own where nobody answers yet.

    What its guest asks for waits in the listeners until the server is taken, and its events are
    kept apart until then, so it has no part in what the other server does.

    :param restore: returns the server, switched on; its events go to the log that it is given.
    :param events: the log of the run.
    """

    def __init__(self, restore: Callable[[EventLog], Server], events: EventLog) -> None:
        self._restore = restore
        self._events = events
        self._own = EventLog()
        self._server: Server | None = None
        self._began = time.monotonic()
        self._thread = Background(events, self._run, name="spare")
        self._thread.start()

    def _run(self) -> None:
        # Whoever wants to take it restores a server, and gets the error of that.
        with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
            self._server = self._restore(self._own)

    def take(self) -> Server | None:
        """Return the server, whose events come to the log of the run from then on.

        :return: None when it could not be restored, has ended or has waited for too long.
        """
        # Each step of it has a limit.
        self._thread.join()
        server = self._server
        fresh = time.monotonic() - self._began < SPARE_SECONDS
        if server is None or not (fresh and server.machine.running):
            self.close()
            return None
        self._server = None
        self._own.pass_on(self._events)
        return server

    def close(self) -> None:
        """End the server."""
        self._thread.join()
        if self._server is not None:
            self._server.close()
            self._server = None
