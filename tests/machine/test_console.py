"""Console output of a guest, over a socket pair in the place of QEMU."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotplate.errors import ThreadFault
from hotplate.events.log import EventLog
from hotplate.machine import console as module
from hotplate.machine.console import FLOOD_LINES, MAX_LINE, Console
from hotplate.timing.deadline import Deadline, DeadlineExceeded


class Guest:
    """The console of a machine, with the test as the guest."""

    def __init__(self, path: Path) -> None:
        self.events = EventLog()
        self.console = Console(path, events=self.events, server_id="s")
        self.theirs, ours = socket.socketpair()
        self.console.attach(ours)

    def write(self, data: bytes) -> None:
        self.theirs.sendall(data)

    def end(self) -> None:
        self.theirs.close()
        self.console.detach(seconds=60)


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[Guest]:
    played = Guest(tmp_path / "console.log")
    yield played
    played.end()


def floods(events: EventLog) -> list[str]:
    return [str(each.detail["fault"]) for each in events if each.kind == "flood"]


def test_lines_are_kept_in_memory_in_the_file_and_as_events(guest: Guest):
    guest.write(b"one\r\n\x1b[1mtwo\x1b[0m\r\nthr")
    guest.console.wait_for("^thr$", Deadline(60, "the prompt"))
    guest.write("ee \u00e4\n".encode())
    guest.end()
    assert guest.console.lines == ["one", "two", "three \u00e4"]
    assert [each.detail["text"] for each in guest.events] == ["one", "two", "three \u00e4"]
    assert guest.console.path.read_bytes() == "one\r\n\x1b[1mtwo\x1b[0m\r\nthree \u00e4\n".encode()
    assert guest.console.path.stat().st_mode & 0o777 == 0o600


def test_failed_reader_fails_the_waiting_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise KeyError("boom")

    monkeypatch.setattr(Console, "_take", fail)
    played = Guest(tmp_path / "console.log")
    played.write(b"one\n")
    with pytest.raises(ThreadFault, match='in the thread "console": KeyError'):
        played.console.wait_for("^never$", Deadline(600, "a line"))
    with pytest.raises(ThreadFault, match='in the thread "console": KeyError'):
        played.events.wait(lambda event: event.kind == "never", seconds=600)
    played.end()


def test_terminal_reset_ends_a_line(guest: Guest):
    """SeaBIOS resets it at its start and before the kernel, here one silent until it panics."""
    guest.write(b"\x1bcSeaBIOS\r\nBooting from ROM..\x1b")
    guest.write(b"c[    1.396986] Kernel panic - not syncing: Attempted to kill init!\n")
    guest.end()
    *_, firmware, kernel = guest.console.lines
    assert (guest.console.lines[0], firmware) == ("SeaBIOS", "Booting from ROM..")
    assert kernel.startswith("[    1.396986] Kernel panic")


def test_row_of_a_screen_is_a_line(guest: Guest):
    """As shim 16.1 shows an error under OVMF 2022.11, here with fewer rows."""
    guest.write(b'BdsDxe: starting Boot0001 "UEFI Misc Device"\r\n')
    guest.write(
        b"\x1b[0m\x1b[37m\x1b[44m\x1b[01;01H\xd9\x1b[01;01H\xda\xc4\xbf\x1b[02;01H\xb3 ERROR \xb3"
    )
    guest.write(b"\x1b[03;01H\xb3 Verification failed: (0x1A) Security Violation \xb3\x1b[04;")
    guest.write(b"01H\xc0\xc4\xd9\x1b[24;39H")
    guest.end()
    words = [line.strip("\ufffd ") for line in guest.console.lines]
    assert [each for each in words if each] == [
        'BdsDxe: starting Boot0001 "UEFI Misc Device"',
        # Two bytes of the box are UTF-8 by chance.
        "\u013f",
        "ERROR",
        "Verification failed: (0x1A) Security Violation",
    ]


def test_flood_is_an_event_and_does_not_fill_memory(guest: Guest):
    guest.write(b"first\n" + b"\n" * (2 * FLOOD_LINES) + b"last\n")
    guest.end()
    assert floods(guest.events) == ["console-flood"]
    assert guest.console.position == 2 * FLOOD_LINES + 2
    kept = guest.console.lines
    assert (kept[0], kept[-1]) == ("first", "last")
    assert len(kept) == module.FIRST_LINES + module.LAST_LINES
    assert len(list(guest.events)) < 10_000


def test_long_lines_are_cut_and_count_as_a_flood(guest: Guest):
    guest.write(b"x" * (module.FLOOD_BYTES + 2 * MAX_LINE))
    guest.end()
    assert floods(guest.events) == ["console-flood"]
    assert max(len(line) for line in guest.console.lines) == MAX_LINE
    assert sum(len(line) for line in guest.console.lines) < 3 * module.LINE_BYTES


def test_file_has_the_beginning_and_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "FILE_BYTES", 1 << 18)
    monkeypatch.setattr(module, "END_BYTES", 1 << 14)
    guest = Guest(tmp_path / "console.log")
    guest.write(b"begin\n" + b"middle\n" * (3 * module.FILE_BYTES // 7) + b"end\n")
    guest.end()
    whole = guest.console.path.read_bytes()
    assert module.FILE_BYTES < len(whole) < module.FILE_BYTES + module.END_BYTES + 200
    assert whole.startswith(b"begin\nmiddle\n")
    assert whole.endswith(b"middle\nend\n")
    assert b"... hotplate left out " in whole


def test_output_of_many_boots_is_no_flood(tmp_path: Path):
    console = Console(tmp_path / "console.log", events=(events := EventLog()))
    for _ in range(3):
        theirs, ours = socket.socketpair()
        console.attach(ours)
        theirs.sendall(b"line\n" * (FLOOD_LINES // 2))
        theirs.close()
        console.detach(seconds=30)
    assert floods(events) == []
    assert console.position == 3 * (FLOOD_LINES // 2)


def test_wait_ends_at_its_deadline_while_lines_come(guest: Guest):
    stop = threading.Event()

    def flood() -> None:
        with contextlib.suppress(OSError):
            while not stop.is_set():
                guest.write(b"never what you want\n" * 100)

    writer = threading.Thread(target=flood)
    writer.start()
    try:
        # A line of which the rest comes later is the last one, too.
        with pytest.raises(DeadlineExceeded, match='the last line on the console was "neve'):
            guest.console.wait_for("^what you want$", Deadline(1, "the prompt"))
    finally:
        stop.set()
        writer.join()


def test_last_line_in_an_error_has_no_control_characters(guest: Guest):
    guest.write(b"\x08\x08\x07last \x1b]52;c;ZXZpbA==\x07\xc2\x9b2J\xe2\x80\xaewords")
    guest.console.wait_for("words$", Deadline(60, "the line"))
    with pytest.raises(DeadlineExceeded, match='was "last 2Jwords"'):
        guest.console.wait_for("never", Deadline(0.1, "it"))


def test_since_counts_dropped_lines(guest: Guest):
    many = module.FIRST_LINES + 3 * module.LAST_LINES
    guest.write(b"".join(b"%d\n" % number for number in range(many)))
    guest.console.wait_for(f"^{many - 1}$", Deadline(60, "the last number"))
    assert guest.console.position == many
    mark = many - 10
    match = guest.console.wait_for(r"^\d+$", Deadline(60, "the next one"), since=mark)
    assert match[0] == str(mark)
