"""What happens during a run, as one stream that every room writes to and the verdict reads.

A room is given an :class:`EventLog` and emits to it; nobody polls.  Values of inputs and outputs,
secrets and signatures never become part of an event: who emits it redacts first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    :param source: the room or service that saw it: ``machine``, ``console``, ``metadata``,
        ``cfn``, ``heat``, ``keystone``, ``swift``, ``zaqar``, ``stack``, ``harness``.
    :param kind: what it was, a short word such as ``request``, ``line``, ``power-on``,
        ``resource``, ``signal``.
    :param server: the Nova id of the server concerned, or "" when it concerns none.
    :param detail: facts for the reader, JSON types only, already redacted.
    :param at: seconds on the monotonic clock.
    :param wall: seconds since the epoch, for people.
    """

    source: str
    kind: str
    server: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    at: float = field(default_factory=time.monotonic)
    wall: float = field(default_factory=time.time)


class EventLog:
    """An append-only list of events that can be waited on and subscribed to.

    Thread-safe.  Subscribers are called in the emitting thread and must be quick.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._subscribers: list[Callable[[Event], None]] = []

    def emit(self, source: str, kind: str, *, server: str = "", **detail: Any) -> Event:
        """Append an event, wake who waits, and tell the subscribers; returns the event."""
        event = Event(source, kind, server, detail)
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()
            subscribers = list(self._subscribers)
        for subscriber in subscribers:
            subscriber(event)
        return event

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``callback`` for every later event; returns a function that ends that."""
        with self._changed:
            self._subscribers.append(callback)

        def unsubscribe() -> None:
            with self._changed:
                if callback in self._subscribers:
                    self._subscribers.remove(callback)

        return unsubscribe

    def __iter__(self) -> Iterator[Event]:
        with self._changed:
            return iter(list(self._events))

    def __len__(self) -> int:
        return len(self._events)

    def since(self, index: int) -> list[Event]:
        """What came at or after an index, which is what :func:`len` was then."""
        with self._changed:
            return self._events[index:]

    def wait(
        self,
        predicate: Callable[[Event], bool],
        *,
        seconds: float,
        since: int = 0,
    ) -> Event | None:
        """Return the first event at or after index ``since`` that satisfies ``predicate``.

        :param seconds: how long to wait for it; 0 only looks.
        :return: the event, or None when the time is over.
        """
        end = time.monotonic() + seconds
        position = since
        while True:
            with self._changed:
                while position >= len(self._events):
                    left = end - time.monotonic()
                    if left <= 0:
                        return None
                    self._changed.wait(left)
                event = self._events[position]
            position += 1
            if predicate(event):
                return event
