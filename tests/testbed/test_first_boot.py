"""What is told while an image is booted for the first time."""

from __future__ import annotations

from itertools import count

import pytest

from hotplate.events.event import Event
from hotplate.testbed import first_boot
from hotplate.testbed.first_boot import Narrator

LINE = Event("console", "line", "web", {"text": "[    0.000000] Linux version 6.1\x1b[2J"})
METADATA = Event(
    "metadata",
    "request",
    "web",
    {"method": "GET", "path": "/openstack/latest/meta_data.json", "status": 200},
)
POWER = Event("machine", "power-on", "web")


@pytest.fixture
def lines(monkeypatch):
    """What was said, by a clock that goes on by ten seconds each time that it is read."""
    clock = count(0, 10)
    monkeypatch.setattr(first_boot.time, "monotonic", lambda: float(next(clock)))
    return []


def test_each_step_is_reported_once_and_in_order(lines):
    narrator = Narrator(lines.append)
    for event in (POWER, LINE, LINE, METADATA, METADATA):
        narrator.see(event)
    assert [words.partition(" s  ")[2] for words in lines] == [
        "the console talks",
        "the network is up",
        "metadata was served",
    ]


def test_a_step_that_was_passed_over_comes_no_more(lines):
    narrator = Narrator(lines.append)
    for event in (METADATA, LINE):
        narrator.see(event)
    assert [words.partition(" s  ")[2] for words in lines] == ["the network is up"]


def test_when_no_step_comes_the_console_is_quoted_without_its_escapes(lines):
    narrator = Narrator(lines.append)
    narrator.see(LINE)
    for _ in range(6):
        narrator.remind()
    waiting = [words for words in lines if "waiting until the network is up" in words]
    assert waiting
    assert all('the console: "[    0.000000] Linux version 6.1"' in words for words in waiting)
    # Not at every look.
    assert len(waiting) < 4
