"""New lines of a console that is fetched as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotplate.elsewhere.following import LINES, ConsoleText
from hotplate.elsewhere.server import CloudConsole
from hotplate.events.kinds import ConsoleLine
from hotplate.events.log import EventLog
from hotplate.timing.deadline import Deadline, DeadlineExceeded, GuestDeadline

STARTED = "heat-config: started id=1"


def test_unfinished_line_is_returned_once():
    console = ConsoleText()
    assert console.new(f"boot\n{STARTED}") == ["boot"]
    assert console.new(f"boot\n{STARTED}") == [STARTED]
    assert console.new(f"boot\n{STARTED}\nfinished\n") == ["finished"]


def test_answered_prompt_is_a_line():
    console = ConsoleText()
    console.new("login: ")
    assert console.new("login: ") == ["login: "]
    assert console.new("login: root\n") == ["login: root"]


def test_console_of_a_restarted_machine_is_new():
    console = ConsoleText()
    console.new("one\ntwo\nthree\n")
    assert console.new("") == []
    assert console.new("one\nfour\n") == ["one", "four"]


def test_number_of_lines_is_limited():
    console = ConsoleText()
    assert len(console.new("x\n" * (LINES + 10))) == LINES
    assert console.new("x\n" * (LINES + 20)) == []


@given(st.lists(st.integers(1, 7), max_size=30), st.integers(20, 40))
def test_each_line_is_returned_once_as_the_window_moves(steps, window):
    """A window that is larger than the new lines loses none."""
    console, written, taken = ConsoleText(), [], []
    for step in steps:
        written += [f"line {len(written) + number}" for number in range(step)]
        taken += console.new("".join(f"{each}\n" for each in written[-window:]))
    assert taken == written


def test_line_is_waited_for_as_long_as_the_host_is_slow():
    """At the end of the usual time the deadline is stretched, and the line is still to come."""
    events = EventLog()

    def measure() -> float:
        events.add(ConsoleLine(STARTED), server="web")
        return 1e6

    deadline = GuestDeadline(0.01, "the hook", measure=measure)
    assert CloudConsole(events, "web").wait_for("started id=(.)", deadline).group(1) == "1"


def test_console_without_the_line_is_given_up_with_its_last():
    events = EventLog()
    events.add(ConsoleLine("login:"), server="web")
    with pytest.raises(DeadlineExceeded, match='for the hook; the last line is "login:"'):
        CloudConsole(events, "web").wait_for("started", Deadline(0, "the hook"))
