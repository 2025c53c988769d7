"""A connected socket, read in lines and bytes within a deadline and a size limit."""

from __future__ import annotations

import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket

    from .deadline import Deadline

CHUNK = 1 << 16


class BrokeOff(OSError):
    """The peer closed the connection early; *started*: True when it had sent data before."""

    def __init__(self, started: bool) -> None:
        super().__init__("the connection was closed")
        self.started = started


class TooLong(Exception):
    """More data than allowed."""


class Stream:
    """Read and write *sock*, which it owns."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()
        self.received = 0

    def close(self) -> None:
        self.sock.close()

    def write(self, data: bytes, deadline: Deadline) -> None:
        """Send all of *data*. Raises OSError."""
        self.sock.settimeout(deadline.left())
        self.sock.sendall(data)

    def line(self, limit: int, deadline: Deadline) -> bytes:
        """Return the next line without its line end. Raises TooLong, OSError."""
        while True:
            end = self._buffer.find(b"\n")
            # A server that never ends its line must not fill the memory.
            if end > limit or (end < 0 and len(self._buffer) > limit):
                raise TooLong
            if end >= 0:
                return bytes(self._take(end + 1)).rstrip(b"\r\n")
            self._more(deadline)

    def exactly(self, count: int, deadline: Deadline) -> bytearray:
        """Return the next *count* bytes. Raises OSError."""
        while len(self._buffer) < count:
            self._more(deadline)
        return self._take(count)

    def some(self, limit: int, deadline: Deadline) -> bytearray:
        """Return at least one byte and at most *limit*, a positive number. Raises OSError."""
        if not self._buffer:
            self._more(deadline)
        return self._take(limit)

    def holds(self) -> bool:
        """Return, without waiting, whether there is data or an end of file to read."""
        # Data that TLS has decrypted already is invisible to poll(2). A plain socket has no
        # pending(), and int() is 0.
        if self._buffer or getattr(self.sock, "pending", int)():
            return True
        try:
            # Not select(2), which fails for descriptors above 1023.
            poll = select.poll()
            poll.register(self.sock, select.POLLIN)
            return bool(poll.poll(0))
        except (OSError, ValueError):
            return True

    def _more(self, deadline: Deadline) -> None:
        # Anew for each recv: the timeout of a socket does not shrink by itself.
        self.sock.settimeout(deadline.left())
        data = self.sock.recv(CHUNK)
        if not data:
            raise BrokeOff(self.received > 0)
        self.received += len(data)
        self._buffer += data

    def _take(self, count: int) -> bytearray:
        data = self._buffer[:count]
        del self._buffer[:count]
        return data
