"""What a guest writes on its serial console: live, as events, and to be waited for."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
import socket
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from hotplate.errors import ThreadFault
from hotplate.events.background import Background
from hotplate.events.kinds import ConsoleLine, GuestFlood
from hotplate.events.log import EventLog
from hotplate.text import clean
from hotplate.timing.deadline import Deadline, DeadlineExceeded

LONGEST_LINE = 4096
"""Characters; a longer line is continued as the next one."""
_LINE_END = re.compile(r"\n|(?<=[^\n])\x1bc")
"""SeaBIOS ends its last line by a reset of the terminal (RIS of ECMA-48), not by a line feed."""

FLOOD_LINES = 30_000
FLOOD_BYTES = 8 << 20
"""What a guest may write until it is a flood: forty times the boot of a Debian.  From then on its
lines are no events any more."""

FILE_BYTES = 16 << 20
END_BYTES = 1 << 20
"""As much of the beginning is in the file; the end of a longer console is added when it ends."""

FIRST_LINES = 5_000
LAST_LINES = 5_000
LINE_BYTES = 4 << 20
"""How many lines, and how many characters of the last ones, are kept in memory."""


class Lines:
    """The lines of a console: the first and the last ones of them, each with its number."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._last: deque[str] = deque()
        self._first_size = 0
        self._last_size = 0
        self.count = 0

    def add(self, line: str) -> None:
        """Append a line; one from the middle may go for it."""
        self.count += 1
        if not self._last and len(self._first) < FIRST_LINES and self._first_size < LINE_BYTES:
            self._first.append(line)
            self._first_size += len(line)
            return
        self._last.append(line)
        self._last_size += len(line)
        while len(self._last) > LAST_LINES or self._last_size > LINE_BYTES:
            self._last_size -= len(self._last.popleft())

    @property
    def dropped(self) -> int:
        """How many lines are not kept any more."""
        return self.count - len(self._first) - len(self._last)

    def since(self, number: int) -> list[str]:
        """Return the lines of that number and after, as far as they are kept."""
        if number < len(self._first):
            return [*self._first[number:], *self._last]
        skipped = max(0, number - len(self._first) - self.dropped)
        return list(self._last)[skipped:]


class File:
    """The file of a console: its beginning, and at the end of the machine its end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._room = 0
        self._end = bytearray()
        self._left_out = 0

    def open(self) -> None:
        """Go on with the file, which is made when it is not there; the owner alone reads it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            self._file = os.open(self._path, flags, 0o600)
            self._room = FILE_BYTES - os.fstat(self._file).st_size
        self._left_out = 0

    def write(self, data: bytes) -> None:
        """Append what still fits; of the rest the last :data:`END_BYTES` are kept for the end."""
        if self._room > 0:
            fits = data[: self._room]
            self._room -= len(fits)
            data = data[len(fits) :]
            self._put(fits)
        if data:
            self._left_out += len(data)
            self._end += data
            if len(self._end) > 2 * END_BYTES:
                del self._end[:-END_BYTES]

    def close(self) -> None:
        """Append the end of what did not fit, and close."""
        if self._file < 0:
            return
        if self._left_out:
            end = bytes(self._end[-END_BYTES:])
            if gap := self._left_out - len(end):
                self._put(f"\r\n... hotplate left out {gap} bytes of this console ...\r\n".encode())
            self._put(end)
        self._end.clear()
        os.close(self._file)
        self._file = -1

    def _put(self, data: bytes) -> None:
        # That the host's disk is full must not stop the guest's console.
        with contextlib.suppress(OSError):
            while data and self._file >= 0:
                data = data[os.write(self._file, data) :]


class Console:
    """The console of one machine over all its power-ons.

    Every byte that QEMU hands over is written to ``path``, up to :data:`FILE_BYTES` and the end;
    each line becomes an event ``console/line`` with the text, without terminal control sequences.
    A guest that writes without end is an event ``harness/flood`` of the fault ``console-flood``.

    :param on_line: called with each line that becomes an event.
    """

    def __init__(
        self,
        path: Path,
        *,
        events: EventLog,
        server_id: str = "",
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self.path = path
        self._on_line = on_line
        self._events = events
        self._server_id = server_id
        self._changed = threading.Condition()
        self._lines = Lines()
        self._partial = ""
        # Since the machine was switched on.
        self._bytes = 0
        self._begun = 0
        self._flooded = False
        self._file = File(path)
        self._channel: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._fault: Exception | None = None

    def attach(self, channel: socket.socket) -> None:
        """Read from a newly started QEMU's console until it ends."""
        self._channel = channel
        self._bytes, self._begun, self._flooded = 0, self._lines.count, False
        self._file.open()
        self._thread = Background(self._events, self._read, channel, name="console")
        self._thread.start()

    def detach(self, *, seconds: float = 5.0) -> None:
        """Take what is still there after QEMU's end, then close."""
        if self._thread is not None:
            self._thread.join(seconds)
            self._thread = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    @property
    def lines(self) -> list[str]:
        """The lines so far, the unfinished last one included; of very many the first and last."""
        with self._changed:
            partial = clean(self._partial)
            kept = self._lines.since(0)
            return [*kept, partial] if partial else kept

    def text(self) -> str:
        """Return everything so far, without terminal control sequences."""
        return "\n".join(self.lines)

    @property
    def position(self) -> int:
        """The number of complete lines so far: a mark for ``since``."""
        with self._changed:
            return self._lines.count

    def write(self, text: str) -> None:
        """Type on the console."""
        if self._channel is None:
            raise BrokenPipeError("the machine is off")
        self._channel.sendall(text.encode())

    def wait_for(self, pattern: str, deadline: Deadline, *, since: int = 0) -> re.Match[str]:
        """Wait until a line matches a regular expression, also an unfinished one (a prompt).

        :param since: the line to begin with, from :attr:`position`.
        :raises DeadlineExceeded: when none came; the last line is part of the text.
        :raises ThreadFault: when nobody reads the console any more, by a fault of hotplate's own.
        """
        expression = re.compile(pattern)
        position = since
        while True:
            if self._fault is not None:
                raise ThreadFault("console", self._fault)
            with self._changed:
                fresh = self._lines.since(position)
                position = self._lines.count
                partial = clean(self._partial)
                if self._fault is None and not fresh and not expression.search(partial):
                    self._changed.wait(deadline.left)
            for line in (*fresh, partial):
                if match := expression.search(line):
                    return match
            # Also while lines come: a guest that writes without end is not waited for longer.
            if deadline.passed:
                last = next(iter(self.lines[-1:]), "")
                raise DeadlineExceeded(
                    f"gave up waiting for {deadline.what} after {deadline.seconds:.0f} s; "
                    f'the last line on the console was "{last}"'
                )

    def _read(self, channel: socket.socket) -> None:
        try:
            self._read_all(channel)
        except Exception as error:
            with self._changed:
                self._fault = error
                self._changed.notify_all()
            raise

    def _read_all(self, channel: socket.socket) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with contextlib.suppress(OSError):
            while data := channel.recv(65536):
                self._file.write(data)
                self._take(decoder.decode(data))
        if self._partial:
            self._take("\n")
        self._file.close()

    def _take(self, text: str) -> None:
        whole = []
        with self._changed:
            self._bytes += len(text)
            *ended, partial = _LINE_END.split(self._partial + text)
            for line in ended:
                whole += _pieces(line)
            # A stream without line ends must not grow without bound.
            if len(partial) > LONGEST_LINE:
                *full, partial = _pieces(partial)
                whole += full
            self._partial = partial
            whole = [clean(line) for line in whole]
            for line in whole:
                self._lines.add(line)
            self._changed.notify_all()
            count = self._lines.count - self._begun
        if self._flooded:
            return
        for line in whole:
            self._events.add(ConsoleLine(line), server=self._server_id)
            if self._on_line is not None:
                self._on_line(line)
        if count > FLOOD_LINES or self._bytes > FLOOD_BYTES:
            self._flooded = True
            text = f"the guest wrote {count} lines, {self._bytes >> 10} KiB, on its console"
            self._events.add(GuestFlood("console-flood", text), server=self._server_id)


def _pieces(line: str) -> list[str]:
    """Return a line, or what it is cut into when it is too long."""
    if len(line) <= LONGEST_LINE:
        return [line]
    return [line[at : at + LONGEST_LINE] for at in range(0, len(line), LONGEST_LINE)]
