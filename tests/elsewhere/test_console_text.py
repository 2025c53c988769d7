"""What is new in a console that is handed out whole."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hotplate.elsewhere.console_text import LINES, ConsoleText

STARTED = "heat-config: started id=1"


def test_a_line_that_is_taken_while_it_is_the_last_is_taken_once():
    console = ConsoleText()
    assert console.new(f"boot\n{STARTED}") == ["boot"]
    assert console.new(f"boot\n{STARTED}") == [STARTED]
    assert console.new(f"boot\n{STARTED}\nfinished\n") == ["finished"]


def test_a_prompt_that_is_answered_is_a_line():
    console = ConsoleText()
    console.new("login: ")
    assert console.new("login: ") == ["login: "]
    assert console.new("login: root\n") == ["login: root"]


def test_a_machine_that_is_started_anew():
    console = ConsoleText()
    console.new("one\ntwo\nthree\n")
    assert console.new("") == []
    assert console.new("one\nfour\n") == ["one", "four"]


def test_no_more_than_is_taken():
    console = ConsoleText()
    assert len(console.new("x\n" * (LINES + 10))) == LINES
    assert console.new("x\n" * (LINES + 20)) == []


@given(st.lists(st.integers(1, 7), max_size=30), st.integers(20, 40))
def test_each_line_once_as_the_window_moves_on(steps, window):
    """A window that is larger than what comes at once loses nothing."""
    console, written, taken = ConsoleText(), [], []
    for step in steps:
        written += [f"line {len(written) + number}" for number in range(step)]
        taken += console.new("".join(f"{each}\n" for each in written[-window:]))
    assert taken == written
