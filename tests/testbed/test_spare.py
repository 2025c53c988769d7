"""A server that is restored ahead: its events, and when it is not used."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hotplate.errors import HostError
from hotplate.events.log import EventLog
from hotplate.testbed import spare as module
from hotplate.testbed.spare import Spare


class Played:
    """A server that emits an event when it is switched on."""

    def __init__(self) -> None:
        self.machine = SimpleNamespace(running=True)
        self.closed = False
        self.events = EventLog()

    def restore(self, events: EventLog) -> Any:
        self.events = events
        events.emit("machine", "power-on", server="web")
        return self

    def close(self) -> None:
        self.closed = True


def kinds(events: EventLog) -> list[str]:
    return [each.kind for each in events]


def test_events_of_a_spare_server_come_to_the_run_when_it_is_taken():
    played, events = Played(), EventLog()
    spare = Spare(played.restore, events)
    spare._thread.join()
    events.emit("machine", "power-off", server="web")
    assert kinds(events) == ["power-off"]
    assert spare.take() is played
    played.events.emit("console", "line", server="web")
    assert kinds(events) == ["power-off", "power-on", "line"]
    spare.close()
    assert not played.closed


@pytest.mark.parametrize("why", ["ended", "waited too long"])
def test_spare_server_of_no_use_is_ended(monkeypatch, why):
    played, events = Played(), EventLog()
    spare = Spare(played.restore, events)
    if why == "ended":
        played.machine.running = False
    else:
        monkeypatch.setattr(module, "SPARE_SECONDS", 0.0)
    assert spare.take() is None
    assert played.closed
    assert kinds(events) == []


def test_spare_server_that_is_not_taken_is_ended():
    played = Played()
    Spare(played.restore, EventLog()).close()
    assert played.closed


def test_spare_server_that_cannot_be_restored_is_none():
    def restore(_events: EventLog) -> Any:
        raise HostError("no loop device is free")

    events = EventLog()
    spare = Spare(restore, events)
    assert spare.take() is None
    spare.close()
    assert events.fault is None
