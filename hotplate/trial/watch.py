"""Wait for the stack and the stages of a run, event by event.

A run is given up after :attr:`~hotplate.settings.Settings.patience` seconds without news, when
nothing is known to be at work; polls and repeated lines are no news.  Guests that have come to
rest are given up as soon as that is seen.
"""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from hotplate.errors import exhaustion
from hotplate.events import classify
from hotplate.events.classify import STACK_TYPE
from hotplate.events.event import Event
from hotplate.events.kinds import ServerWaiting, ServiceRequest, StackResource
from hotplate.events.log import EventLog
from hotplate.settings import Settings
from hotplate.timing.deadline import Deadline, GuestDeadline
from hotplate.trial.rest import LOOK_SECONDS

DONE = ("COMPLETE", "FAILED")
CHECK_SECONDS = 0.2
#: The number of different requests of the guests that count as news.
NEW_REQUESTS = 5_000
#: The number of times that the same line of a console counts as news.
SAME_LINES = 3
#: The number of lines that are remembered; a guest that writes more floods its console.
NEW_LINES = 20_000


@dataclass(frozen=True)
class StackEnd:
    """The end of a stack.

    :param status: such as ``CREATE_COMPLETE``; the last one seen when it did not end.
    :param reason: Heat's words, or why the wait for it ended early.
    """

    status: str
    reason: str = ""


class Watch:
    """Waits for a stack and for its servers' due stages; one limit holds for all of it.

    :param on_server: called with the id of each server when Heat boots it, and when its machine is
        switched on.
    :param on_waiting: called with a sentence when a server has to wait for memory of the host, and
        when work in progress is waited for in silence.
    :param at_work: returns the work in progress in the guests, such as a hook; "" for none.
    :param at_rest: returns why nothing more is to be expected of the guests, "" while something is;
        asked after a short while without news.
    :ivar given_up: a sentence, when the limit of the run passed and something was still at work.
    :param check: checks the guests meanwhile, and adds its results to the events; called again
        and again.
    """

    def __init__(
        self,
        events: EventLog,
        settings: Settings,
        *,
        on_server: Callable[[str], None],
        on_waiting: Callable[[str], object] = str,
        at_work: Callable[[], str] = str,
        at_rest: Callable[[], str] = str,
        check: Callable[[], object] = str,
    ) -> None:
        self._queue: queue.Queue[Event] = queue.Queue()
        self._settings = settings
        self._limit: Deadline | None = None
        self._seen: set[tuple[object, ...]] = set()
        self._lines: Counter[tuple[str, str]] = Counter()
        self._reported: set[str] = set()
        self.given_up = ""
        self._waiting: dict[str, Deadline] = {}
        self._on_server = on_server
        self._on_waiting = on_waiting
        self._at_work = at_work
        self._at_rest = at_rest
        self._check = check
        self._events = events
        self._unsubscribe = events.subscribe(self._queue.put)

    def close(self) -> None:
        """Stop listening."""
        self._unsubscribe()

    def stack(self, name: str, action: str) -> StackEnd:
        """Wait until the stack has ended ``action``, or nothing more is to be expected.

        :return: its end; the status is ``<action>_IN_PROGRESS`` when it was given up.
        :raises ThreadFault: when a thread of hotplate's own fails meanwhile, or the host is out of
            resources.
        """
        ended: list[StackEnd] = []

        def is_end(event: Event) -> bool:
            ended.extend(filter(None, [_end(event, name, action)]))
            return bool(ended)

        why = self._wait(is_end)
        return ended[0] if ended else StackEnd(f"{action}_IN_PROGRESS", why)

    def until(self, reached: Callable[[], bool]) -> str:
        """Wait until events make a condition true, or nothing more is to be expected.

        :return: "" when it is true, else why it was given up.
        :raises ThreadFault: when a thread of hotplate's own fails meanwhile.
        """
        return "" if reached() else self._wait(lambda _: reached())

    def _wait(self, ends: Callable[[Event], bool]) -> str:
        """Wait for an event that ends it; return "" when it came, else why it was given up."""
        silence = GuestDeadline(self._settings.patience, "anything new")
        self._limit = limit = self._limit or GuestDeadline(self._settings.limit, "the stack")
        look = Deadline(LOOK_SECONDS, "a look at the guests")
        check = Deadline(0, "a check of the guests")
        while True:
            # A fault of ours is an event, so it ends the wait below as well.
            self._events.check()
            doubt = self._events.fault
            if doubt is not None and exhaustion(doubt.__cause__ or doubt):
                # Heat's database may be full: the end of the stack cannot be written.
                raise doubt
            if check.passed:
                self._check()
                check.extend(CHECK_SECONDS)
            if look.passed and not (silence.passed or limit.passed):
                if (why := self._at_rest()) and self._queue.empty():
                    return why
                look.extend(LOOK_SECONDS)
            try:
                wait = min(silence.left, limit.left, look.left, check.left)
                event = self._queue.get(timeout=max(0.0, wait))
            except queue.Empty:
                if not silence.passed and not limit.passed:
                    continue
                if self._for_memory():
                    # The memory depends on the host, and its reservation has a limit of its own.
                    silence.extend(self._settings.patience)
                    limit.extend(self._settings.patience)
                    continue
                if not limit.passed and (what := self._at_work()):
                    self._report_work(what, silence)
                    silence.extend(self._settings.patience)
                    continue
                return self._give_up(silence, limit)
            self._note_waiting(event)
            if self._is_new(event):
                silence.extend(self._settings.patience)
                look.extend(LOOK_SECONDS)
            if limit.passed and not self._for_memory():
                return self._give_up(silence, limit)
            if (event.source, event.kind) in (("nova", "boot"), ("machine", "power-on")):
                self._on_server(event.server)
            if ends(event):
                return ""
            if why := classify.hopeless(event):
                return why

    def _is_new_line(self, server: str, text: str) -> bool:
        """Return False for a line that came several times, ignoring its time and process id.

        A service that fails and is restarted would be news for ever.
        """
        line = (server, classify.undated(text))
        if line not in self._lines and len(self._lines) >= NEW_LINES:
            return True
        self._lines[line] += 1
        return self._lines[line] <= SAME_LINES

    def _report_work(self, what: str, silence: Deadline) -> None:
        """Report work that is waited for in silence, each kind of it once."""
        if what not in self._reported:
            self._reported.add(what)
            self._on_waiting(
                f"nothing new for {silence.seconds:.0f} s: waiting for {what}, which is at work, "
                f"{self._settings.limit:.0f} s in all at most (--limit)"
            )

    def _give_up(self, silence: Deadline, limit: Deadline) -> str:
        """Return why a run is given up, and store it where something was still at work."""
        if not limit.passed:
            return f"nothing new was seen for {silence.seconds:.0f} s"
        why = f"not finished {limit.seconds:.0f} s after it was begun"
        if what := self._at_work():
            self.given_up = (
                f"given up {limit.seconds:.0f} s after it was begun, with {what} at work"
            )
        return why

    def _note_waiting(self, event: Event) -> None:
        """Note the servers that wait for memory of the host."""
        if waiting := ServerWaiting.of(event):
            # The reservation ends by then; that of a deleted server ends without an event.
            seconds = self._settings.limit + self._settings.patience
            self._waiting[event.server] = Deadline(seconds, "memory of the host")
            self._on_waiting(f'"{waiting.name}": {waiting.text}')
        elif (event.source, event.kind) in (("machine", "power-on"), ("harness", "fault")):
            self._waiting.pop(event.server, None)

    def _for_memory(self) -> bool:
        return any(not each.passed for each in self._waiting.values())

    def _is_new(self, event: Event) -> bool:
        # Heat asks again and again for a server that does not come up.
        if classify.is_waiting(event) or classify.is_by_host(event):
            return False
        if (text := classify.console_text(event)) is not None:
            return self._is_new_line(event.server, text)
        if not classify.is_request(event):
            return True
        asked = ServiceRequest.of(event) or ServiceRequest()
        key = (event.server, event.source, asked.method, classify.path(event), asked.status)
        # A guest that sends ever new requests must fill neither the memory nor the time.
        if key in self._seen or len(self._seen) >= NEW_REQUESTS:
            return False
        self._seen.add(key)
        return True


def _end(event: Event, name: str, action: str) -> StackEnd | None:
    """Return the end of a stack, if an event reports it."""
    change = StackResource.of(event)
    if change is None or (change.type, change.resource) != (STACK_TYPE, name):
        return None
    if change.action != action or change.status not in DONE:
        return None
    return StackEnd(f"{action}_{change.status}", change.reason)
