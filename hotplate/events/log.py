"""The event stream of a run: every room writes to it and the verdict reads it.

A room is given an :class:`EventLog` and emits to it; no room polls another.  Values of inputs and
outputs, secrets and signatures never become part of an event: the emitter redacts first.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Never

from hotplate.errors import ThreadFault
from hotplate.events.event import Event
from hotplate.events.kinds import EventFacts, InternalFault
from hotplate.text import shortened

FIRST = 2_000
#: The number of events of one kind and server that are kept, from the start and from the end.
#: Subscribers get all of them, also the dropped ones in between.
LAST = 3_000

#: How long an announced event is waited for; most come at once.
SETTLE_SECONDS = 10.0

#: The maximum length of a text chosen by a guest (a path, a name) in an event, in characters.
MAX_TEXT = 1024


def clipped(text: str) -> str:
    """Return a text chosen by a guest, cut to the length that an event may hold."""
    return shortened(text, MAX_TEXT)


class EventLog:
    """A list of events that can be waited on and subscribed to.

    Each event has a permanent number, its index: :func:`len` is the number of the next one.  Of one
    kind and server the first and the last are kept (:data:`FIRST`, :data:`LAST`), so that
    neither a guest nor a session that lasts for weeks fills the memory.

    Thread-safe.  Subscribers are called in the emitting thread and must be quick.  One that raises
    is removed, and neither the emitting thread nor the other subscribers notice it: waiting threads
    get a :class:`~hotplate.errors.ThreadFault`, as for any other fault of hotplate's own
    (:meth:`fail`).

    :param first: how many of the first events of one kind and server are kept;
        ``last``: how many of the last ones.
    """

    def __init__(self, *, first: int = FIRST, last: int = LAST) -> None:
        self._first = first
        self._last = last
        self._events: list[Event] = []
        self._numbers: list[int] = []
        self._next = 0
        self._kept: Counter[tuple[str, str]] = Counter()
        # One for each event that is on its way.
        self._coming: set[object] = set()
        # Reentrant: a fault may come from this log itself.
        self._changed = threading.Condition(threading.RLock())
        # By the number of their event; of the faults that end no wait, only the first.
        self._faults: dict[int, ThreadFault] = {}
        self._doubt: ThreadFault | None = None
        self._subscribers: list[Callable[[Event], None]] = []
        self._onward: EventLog | None = None

    def pass_on(self, log: EventLog) -> None:
        """Append the events of this log to another, and from then on each new one there only."""
        with self._changed:
            for number, event in zip(self._numbers, self._events, strict=True):
                log._append(event, self._faults.get(number))
            self._onward = log

    def add(self, facts: EventFacts, *, server: str = "", source: str = "") -> Event:
        """Append an event with the facts of its kind, and return it.

        :param source: the service, for a kind that several have.
        """
        # Fails when a kind has several sources, and none is named.
        (source,) = {source} if source else facts.SOURCES
        return self._append(Event(source, facts.KIND, server, facts.detail()))

    def emit(self, source: str, kind: str, *, server: str = "", **detail: Never) -> Event:
        """Append an event of a kind that has no facts, and return it.

        Tests also emit kinds that no room has; ``detail`` is hidden from the type checker.
        """
        return self._append(Event(source, kind, server, detail))

    @contextlib.contextmanager
    def coming(self) -> Iterator[None]:
        """Announce the event that this thread appends in the context, after what it is about.

        For an effect that others may see before the event; see :meth:`settle`.
        """
        mark = object()
        with self._changed:
            self._coming.add(mark)
        try:
            yield
        finally:
            with self._changed:
                self._coming.discard(mark)
                self._changed.notify_all()

    def settle(self, *, seconds: float = SETTLE_SECONDS) -> bool:
        """Wait for the events that are announced now (:meth:`coming`); return whether all came.

        :param seconds: how long to wait for them; 0 does not wait.
        """
        end = time.monotonic() + seconds
        with self._changed:
            awaited = set(self._coming)
            while awaited & self._coming:
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
        return True

    def fail(self, error: Exception) -> None:
        """Record a fault of hotplate's own in this thread; waiting threads get it at once."""
        fault = ThreadFault(threading.current_thread().name, error)
        self._append(_fault_event(fault, ends=True), fault)

    def doubt(self, error: Exception) -> None:
        """Record a fault of hotplate's own that failed one request and ends no wait.

        A later failure may be a consequence of it; see :attr:`fault`.
        """
        with self._changed:
            # Only the first one: the others may be its consequences.
            if self._doubt is not None:
                return
            fault = self._doubt = ThreadFault(threading.current_thread().name, error)
        self._append(_fault_event(fault, ends=False))

    @property
    def fault(self) -> ThreadFault | None:
        """The first fault of hotplate's own; one that ended a wait takes precedence."""
        with self._changed:
            return next(iter(self._faults.values()), self._doubt)

    def check(self) -> None:
        """Raise the first fault that ends a wait (:meth:`fail`), if there is one.

        :raises ThreadFault: with what was raised as its cause.
        """
        with self._changed:
            fault = next(iter(self._faults.values()), None)
        if fault is not None:
            raise fault

    def _append(self, event: Event, fault: ThreadFault | None = None) -> Event:
        """Store an event, wake waiting threads, and call the subscribers."""
        with self._changed:
            if self._onward is not None:
                return self._onward._append(event, fault)
            if fault is not None:
                self._faults[self._next] = fault
            self._events.append(event)
            self._numbers.append(self._next)
            self._next += 1
            group = (event.kind, event.server)
            self._kept[group] += 1
            # Thinned only when twice as many have come, so that the cost for each event is small.
            if self._kept[group] >= self._first + 2 * self._last:
                self._thin_out(group)
            self._changed.notify_all()
            subscribers = list(self._subscribers)
        # Outside of the lock, so that a slow subscriber does not stop the other threads.
        for subscriber in subscribers:
            try:
                subscriber(event)
            except Exception as error:  # the subscriber's fault, not the emitter's
                self._unsubscribe(subscriber)
                self.fail(error)
        return event

    def _unsubscribe(self, callback: Callable[[Event], None]) -> None:
        with self._changed:
            if callback in self._subscribers:
                self._subscribers.remove(callback)

    def _thin_out(self, group: tuple[str, str]) -> None:
        """Drop the events of a kind and server between the first and the last ones."""
        ours = [
            index for index, event in enumerate(self._events) if (event.kind, event.server) == group
        ]
        gone = set(ours[self._first : len(ours) - self._last])
        kept = [index for index in range(len(self._events)) if index not in gone]
        self._events = [self._events[index] for index in kept]
        self._numbers = [self._numbers[index] for index in kept]
        self._kept[group] -= len(gone)

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``callback`` for every later event; return a function that unsubscribes it."""
        with self._changed:
            self._subscribers.append(callback)
        return lambda: self._unsubscribe(callback)

    def __iter__(self) -> Iterator[Event]:
        with self._changed:
            # A copy, because other threads append meanwhile.
            return iter(list(self._events))

    def __len__(self) -> int:
        return self._next

    def since(self, index: int) -> list[Event]:
        """Return the events, as far as they are kept, from index ``index`` on."""
        with self._changed:
            # An event keeps its number when others are dropped; its place changes.
            return self._events[bisect_left(self._numbers, index) :]

    def wait(
        self,
        predicate: Callable[[Event], bool],
        *,
        seconds: float,
        since: int = 0,
    ) -> Event | None:
        """Return the first event at or after index ``since`` that satisfies ``predicate``.

        :param seconds: how long to wait for it; 0 does not wait.
        :return: the event, or None when the time is over.
        :raises ThreadFault: when a thread of hotplate's own fails before it comes.
        """
        end = time.monotonic() + seconds
        position = since
        while True:
            with self._changed:
                while position >= self._next:
                    left = end - time.monotonic()
                    if left <= 0:
                        return None
                    self._changed.wait(left)
                # The event of this number may have been dropped: the next one that is kept.
                place = bisect_left(self._numbers, position)
                event, position = self._events[place], self._numbers[place] + 1
                fault = self._faults.get(position - 1)
            if fault is not None:
                raise fault
            # Outside of the lock: a predicate may take long.
            if predicate(event):
                return event


def _fault_event(fault: ThreadFault, *, ends: bool) -> Event:
    facts = InternalFault(fault.thread, clipped(str(fault)), ends)
    (source,) = facts.SOURCES
    return Event(source, facts.KIND, "", facts.detail())
