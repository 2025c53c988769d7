"""Serial console of a guest: recorded live, sent as events, and awaited."""

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

#: Characters; a longer line is continued as the next one.
MAX_LINE = 4096
#: SeaBIOS ends its last line by a reset of the terminal (RIS of ECMA-48), not by a line feed; UEFI
#: programs, such as shim with an error, write a screen by moving to the start of each row (CUP).
_LINE_END = re.compile(r"\n|(?<=[^\n])(?:\x1bc|(?:\x1b\[[0-?]*[A-Za-z])*\x1b\[\d+;0?1H)")

FLOOD_LINES = 30_000
#: Output of one power-on above which it is a flood: forty times the boot of a Debian. Later lines
#: are no longer events.
FLOOD_BYTES = 8 << 20

FILE_BYTES = 16 << 20
#: Bytes kept of the beginning and of the end; the end is appended when the machine ends.
END_BYTES = 1 << 20

FIRST_LINES = 5_000
LAST_LINES = 5_000
#: Limits of the lines, and of the characters of the last ones, that are kept in memory.
LINE_BYTES = 4 << 20


class Lines:
    """The first and last lines of a console, addressed by their number."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._last: deque[str] = deque()
        self._first_size = 0
        self._last_size = 0
        self.count = 0

    def add(self, line: str) -> None:
        """Append a line; when full, drop the oldest of the last ones."""
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
        """Return how many lines were dropped."""
        return self.count - len(self._first) - len(self._last)

    def since(self, number: int) -> list[str]:
        """Return the lines from a number on, as far as they are kept."""
        if number < len(self._first):
            return [*self._first[number:], *self._last]
        skipped = max(0, number - len(self._first) - self.dropped)
        return list(self._last)[skipped:]


class File:
    """The file of a console: the beginning, and at the end of the machine the last output."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._room = 0
        self._end = bytearray()
        self._left_out = 0

    def open(self) -> None:
        """Continue the file, or make it; only the owner may read it."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            # Without a file the lines are still events.
            self._file = os.open(self._path, flags, 0o600)
            self._room = FILE_BYTES - os.fstat(self._file).st_size
        self._left_out = 0

    def write(self, data: bytes) -> None:
        """Append up to the limit; keep the last :data:`END_BYTES` of the rest for the end."""
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
        """Append the kept end, and close."""
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
        # A full disk of the host must not stop the guest's console.
        with contextlib.suppress(OSError):
            while data and self._file >= 0:
                data = data[os.write(self._file, data) :]


class Console:
    """The console of one machine over all its power-ons.

    Every byte that QEMU hands over is written to ``path``, up to :data:`FILE_BYTES` and the end;
    each line becomes an event ``console/line`` with the text, without terminal control sequences.
    Endless output of a guest is an event ``harness/flood`` of the fault ``console-flood``.

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
        # Counted since the machine was switched on.
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
        """Read the remaining output after QEMU's end, then close."""
        if self._thread is not None:
            self._thread.join(seconds)
            self._thread = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    @property
    def lines(self) -> list[str]:
        """Return the lines so far, the unfinished last one too; of very many the first and last."""
        with self._changed:
            partial = clean(self._partial)
            kept = self._lines.since(0)
            return [*kept, partial] if partial else kept

    def text(self) -> str:
        """Return all output so far, without terminal control sequences."""
        return "\n".join(self.lines)

    @property
    def position(self) -> int:
        """Return the number of complete lines so far: a mark for ``since``."""
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
        :raises DeadlineExceeded: when none came; the text contains the last line.
        :raises ThreadFault: when the reader thread has failed, by a fault of hotplate's own.
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
                # Under the lock that the reader takes to add lines: a line added between this
                # check and the wait would not end the wait.
                if self._fault is None and not fresh and not expression.search(partial):
                    self._changed.wait(deadline.left)
            # Outside of the lock, so that the reader goes on meanwhile.
            for line in (*fresh, partial):
                if match := expression.search(line):
                    return match
            # Check it also while lines come, as a guest may write without end.
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
        # A character may be split between two reads.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with contextlib.suppress(OSError):
            # A killed QEMU may reset the connection instead of closing it.
            while data := channel.recv(65536):
                self._file.write(data)
                self._take(decoder.decode(data))
        if self._partial:
            # The last line has no end when the power is cut.
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
            if len(partial) > MAX_LINE:
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
    """Return a line, cut into pieces when it is too long."""
    if len(line) <= MAX_LINE:
        return [line]
    return [line[at : at + MAX_LINE] for at in range(0, len(line), MAX_LINE)]
