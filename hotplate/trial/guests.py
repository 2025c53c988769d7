"""The guests of a run, which the run's checks look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from hotplate.events.event import Event
from hotplate.events.log import EventLog
from hotplate.testbed.server import Server
from hotplate.verdict.tracker import StageTracker


class Guests:
    """The guests of a run.

    :param events: the run's.
    :param server: returns a server by its Nova id, None when there is no such server.
    :param trackers: the tracker of each server.
    """

    def __init__(
        self,
        events: EventLog,
        server: Callable[[str], Server | None],
        trackers: Mapping[str, StageTracker],
    ) -> None:
        self.events = events
        self.server = server
        self.trackers = trackers

    def settled(self) -> Iterator[tuple[Server, StageTracker]]:
        """Yield the guests whose machines run, except those that are rebooting."""
        for identity, tracker in list(self.trackers.items()):
            server = self.server(identity)
            if server is None or not server.machine.running:
                continue
            if not (tracker.boots.rebooting or tracker.boots.unsettled):
                yield server, tracker

    def events_of(self, server: Server, since: int = 0) -> list[Event]:
        """Return a server's events.

        :param since: the length of the event log before the first of them.
        """
        return [each for each in self.events.since(since) if each.server == server.spec.id]
