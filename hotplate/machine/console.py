"""What a guest writes on its serial console: live, as events, and to be waited for."""

from __future__ import annotations

import codecs
import contextlib
import re
import socket
import threading
from pathlib import Path

from hotplate.events.log import EventLog
from hotplate.timing.deadline import Deadline, DeadlineExceeded

ESCAPES = re.compile(
    r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\^_c78=>])|[\r\x00]"
)
"""Terminal control sequences (ECMA-48) and carriage returns, which are not part of a line."""

LONGEST_LINE = 16384


class Console:
    """The console of one machine over all its power-ons.

    QEMU itself writes every byte to ``path``, so that nothing is lost when the harness dies; this
    class reads the same bytes from a socket.  Each line becomes an event ``console/line`` with
    the text, without terminal control sequences.
    """

    def __init__(self, path: Path, *, events: EventLog, server_id: str = "") -> None:
        self.path = path
        self._events = events
        self._server_id = server_id
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._partial = ""
        self._channel: socket.socket | None = None
        self._thread: threading.Thread | None = None

    def attach(self, channel: socket.socket) -> None:
        """Read from a newly started QEMU's console until it ends."""
        self._channel = channel
        self._thread = threading.Thread(
            target=self._read, args=(channel,), name="console", daemon=True
        )
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
        """The lines so far, the unfinished last one included."""
        with self._changed:
            partial = clean(self._partial)
            return [*self._lines, partial] if partial else list(self._lines)

    def text(self) -> str:
        """Return everything so far, without terminal control sequences."""
        return "\n".join(self.lines)

    @property
    def position(self) -> int:
        """The number of complete lines so far: a mark for ``since``."""
        with self._changed:
            return len(self._lines)

    def write(self, text: str) -> None:
        """Type on the console."""
        if self._channel is None:
            raise BrokenPipeError("the machine is off")
        self._channel.sendall(text.encode())

    def wait_for(self, pattern: str, deadline: Deadline, *, since: int = 0) -> re.Match[str]:
        """Wait until a line matches a regular expression, also an unfinished one (a prompt).

        :param since: the line to begin with, from :attr:`position`.
        :raises DeadlineExceeded: when none came; the last line is part of the text.
        """
        expression = re.compile(pattern)
        position = since
        with self._changed:
            while True:
                while position < len(self._lines):
                    if match := expression.search(self._lines[position]):
                        return match
                    position += 1
                if match := expression.search(clean(self._partial)):
                    return match
                if not self._changed.wait(deadline.left) and deadline.passed:
                    last = clean(self._partial) or (self._lines[-1] if self._lines else "")
                    raise DeadlineExceeded(
                        f"gave up waiting for {deadline.what} after {deadline.seconds:.0f} s; "
                        f'the last line on the console was "{last}"'
                    )

    def _read(self, channel: socket.socket) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        with contextlib.suppress(OSError):
            while data := channel.recv(65536):
                self._take(decoder.decode(data))
        if self._partial:
            self._take("\n")

    def _take(self, text: str) -> None:
        with self._changed:
            *whole, partial = (self._partial + text).split("\n")
            # A stream without line ends must not grow without bound.
            if len(partial) > LONGEST_LINE:
                whole.append(partial)
                partial = ""
            self._partial = partial
            whole = [clean(line) for line in whole]
            self._lines += whole
            self._changed.notify_all()
        for line in whole:
            self._events.emit("console", "line", server=self._server_id, text=line)


def clean(text: str) -> str:
    """Return a line without terminal control sequences."""
    return ESCAPES.sub("", text)
