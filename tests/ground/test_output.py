"""The live line: redrawn on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import io
import os
import threading

import pytest

from hotplate import output
from hotplate.output import WIPE, LiveLine, fitted


class Terminal(io.StringIO):
    """Keeps each write; :attr:`drawn` is set by the third."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.drawn = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.writes.append(text)
        if len(self.writes) == 3:
            self.drawn.set()
        return super().write(text)


@pytest.fixture(autouse=True)
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output, "INTERVAL", 0.001)


def test_live_line_is_redrawn_in_one_piece_and_wiped():
    # A line that is first cleared and then written flickers.
    stream = Terminal()
    with LiveLine(stream, lambda: "copying") as line:
        assert stream.drawn.wait(30)
        line.say("measured")
    assert set(stream.writes) == {f"{WIPE}copying", f"{WIPE}measured\n", WIPE}
    assert stream.writes[-1] == WIPE


@pytest.mark.parametrize("name", ["dumb", "xterm"])
def test_only_a_terminal_that_can_clear_a_line_gets_a_live_one(monkeypatch, name):
    monkeypatch.setenv("TERM", name)
    stream = Terminal() if name == "dumb" else io.StringIO()
    with LiveLine(stream, lambda: "copying") as line:
        line.say("measured")
    assert stream.getvalue() == "measured\n"


@pytest.mark.parametrize(("columns", "shown"), [(80, "0123456789"), (6, "01234"), (1, "0")])
def test_live_line_never_wraps(monkeypatch, columns, shown):
    size = os.terminal_size((columns, 24))
    monkeypatch.setattr(output.shutil, "get_terminal_size", lambda: size)
    assert fitted("0123456789") == shown
