"""The lines of several cases: redrawn on a terminal, one for each change elsewhere."""

from __future__ import annotations

import io
import os

import pytest

from hotplate.report import board as boards
from hotplate.report.board import Board


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """Return the screen of a terminal, by the two sequences of ECMA-48 that are used."""
        lines: list[str] = [""]
        for part in self.getvalue().replace("\x1b[J", "").split("\x1b["):
            number, up, text = part.partition("A")
            if up and number.isdigit():
                del lines[len(lines) - 1 - int(number) :]
                lines.append("")
            else:
                text = part
            for each in text.splitlines():
                lines[-1] = each
                lines.append("")
        return lines[:-1]


@pytest.fixture
def size(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")

    def of(columns, lines):
        monkeypatch.setattr(
            boards.shutil, "get_terminal_size", lambda: os.terminal_size((columns, lines))
        )

    of(80, 24)
    return of


def test_each_change_is_a_line_with_its_case():
    stream = io.StringIO()
    board = Board(stream)
    board.begin("web.qcow2 ec2")
    board.doing("web.qcow2 ec2", "booted after 17 s")
    board.draw()
    board.end("web.qcow2 ec2", ["web.qcow2 ec2: PASSED"])
    assert stream.getvalue() == (
        "web.qcow2 ec2: starting\nweb.qcow2 ec2: booted after 17 s\nweb.qcow2 ec2: PASSED\n"
    )
    assert board.interval is None


def test_running_cases_are_drawn_below_ended_ones(size):
    stream = Terminal()
    board = Board(stream)
    for name in ("one", "two"):
        board.begin(name)
        board.doing(name, "boots")
    board.end("one", ["one: PASSED"])
    board.doing("two", "waits")
    assert [each.strip() for each in stream.screen()] == ["one: PASSED", "0 s  two: waits"]
    board.end("two", ["two: FAILED"])
    assert stream.screen() == ["one: PASSED", "two: FAILED"]
    assert board.interval


def test_lines_fit_the_terminal(size):
    size(30, 6)
    stream = Terminal()
    board = Board(stream)
    for number in range(9):
        board.begin(f"case {number} with a name that is longer than the terminal is wide")
    shown = stream.screen()
    assert len(shown) == 4
    assert shown[-1] == "... and 6 more"
    assert all(len(line) < 30 for line in shown)


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_quiet_board_shows_only_results(kind):
    stream = kind()
    board = Board(stream, quiet=True)
    board.begin("one")
    board.doing("one", "boots")
    board.end("one", ["one: PASSED"])
    assert stream.getvalue() == "one: PASSED\n"


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_guest_text_is_one_clean_line(kind, size):
    stream = kind()
    board = Board(stream)
    board.begin("one")
    board.doing("one", "server \x1b[2J\nPASSED")
    assert "\x1b[2J" not in stream.getvalue()
    assert "one: server  PASSED" in stream.getvalue()


def test_line_has_the_usual_time_of_its_case(size):
    stream = Terminal()
    board = Board(stream, usual={"old": 41.6}.get)
    board.begin("old")
    board.begin("new")
    assert stream.screen() == ["     0 of 42 s  old: starting", "     0 s  new: starting"]
