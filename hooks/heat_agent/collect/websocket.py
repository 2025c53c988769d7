"""A websocket client (RFC 6455) for text messages, without extensions."""

from __future__ import annotations

import os

from heat_config import http1
from heat_config.stream import Stream, TooLong

TYPE_CHECKING = False
if TYPE_CHECKING:
    from heat_config.address import Target
    from heat_config.deadline import Deadline

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 1.3
CONTINUED, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
CONTROL_LIMIT = 125
#: Maximum frames of one message, or before one.
FRAMES = 1000


class Failed(OSError):
    """The server refused, closed the connection, or broke the protocol."""


class WebSocket:
    """A connection over *stream*, which it owns; *limit*: bytes of one message."""

    def __init__(self, stream: Stream, limit: int) -> None:
        self.stream = stream
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def begin(self, target: Target, deadline: Deadline) -> None:
        """Shake hands for *target*, a Target. Raises Failed, OSError."""
        from binascii import b2a_base64

        key = b2a_base64(os.urandom(16), newline=False)
        headers = {
            "Host": target.authority,
            "Upgrade": "websocket",
            "Connection": "Upgrade",
            "Sec-WebSocket-Key": key.decode("ascii"),
            "Sec-WebSocket-Version": "13",
        }
        self.stream.write(http1.head("GET", target.path, headers), deadline)
        try:
            answer = http1.read_answer(self.stream, "GET", deadline, 1 << 16)
        except (http1.Malformed, TooLong):
            raise Failed("the answer is not HTTP") from None
        if answer.status != 101:
            raise Failed(f"the server answered {answer.status}")
        upgraded = answer.headers.get("upgrade", "").lower() == "websocket"
        if not upgraded or answer.headers.get("sec-websocket-accept") != accept_of(key):
            raise Failed("the server does not speak websocket")

    def send(self, text: str, deadline: Deadline) -> None:
        """Send one message. Raises OSError."""
        self.stream.write(frame(TEXT, text.encode("utf-8")), deadline)

    def receive(self, deadline: Deadline) -> str:
        """Return the next message. Raises Failed, OSError."""
        for _ in range(FRAMES):
            text = self.step(deadline)
            if text is not None:
                return text
        raise Failed("the server sends frames but no message")

    def step(self, deadline: Deadline) -> str | None:
        """Read one frame; return the message that it completes, or None."""
        final, code, payload = self._frame(deadline)
        if code == PING:
            self.stream.write(frame(PONG, payload), deadline)
        elif code == CLOSE:
            raise Failed("the server closed the connection")
        elif code in (TEXT, BINARY, CONTINUED):
            return self._part(final, code, payload)
        elif code != PONG:
            raise Failed("the server sent a frame of unknown type")
        return None

    def close(self) -> None:
        """Send a close frame, if that is possible at once, and close."""
        self.stream.sock.settimeout(0)
        try:
            # 1000, "normal closure" (RFC 6455 7.4.1).
            self.stream.sock.send(frame(CLOSE, b"\x03\xe8"))
        # The connection ends in any case.
        except OSError:
            pass
        finally:
            self.stream.close()

    def _part(self, final: bool, code: int, payload: bytes) -> str | None:
        # A continuation needs a message that has begun; no other data may come in between (5.4).
        if (code == CONTINUED) != bool(self._parts):
            raise Failed("the server sent the parts of a message out of order")
        self._size += len(payload)
        if self._size > self._limit or len(self._parts) >= FRAMES:
            raise Failed("the message is too long")
        self._parts.append(payload)
        if not final:
            return None
        data = b"".join(self._parts)
        self._parts, self._size = [], 0
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise Failed("the message is not text") from None

    def _frame(self, deadline: Deadline) -> tuple[bool, int, bytes]:
        first, second = self.stream.exactly(2, deadline)
        length = second & 0x7F
        code = first & 0x0F
        # No extension was negotiated (bits 1 to 3), and a server must not mask (RFC 6455 5.1).
        if first & 0x70 or second & 0x80:
            raise Failed("the server sent an invalid frame")
        # A control frame is short and never fragmented (5.5).
        if code >= CLOSE and (length > CONTROL_LIMIT or not first & 0x80):
            raise Failed("the server sent an invalid frame")
        # 126 and 127 announce a length of 16 and of 64 bits (5.2).
        if length == 126:
            length = int.from_bytes(self.stream.exactly(2, deadline), "big")
        elif length == 127:
            length = int.from_bytes(self.stream.exactly(8, deadline), "big")
        if length > self._limit:
            raise Failed("the message is too long")
        return bool(first & 0x80), code, bytes(self.stream.exactly(length, deadline))


def accept_of(key: bytes) -> str:
    """Return the Sec-WebSocket-Accept that *key* requires in the answer (RFC 6455 4.2.2)."""
    from binascii import b2a_base64
    from hashlib import sha1

    return b2a_base64(sha1(key + GUID).digest(), newline=False).decode("ascii")  # noqa: S324


def frame(code: int, payload: bytes) -> bytes:
    """Return an unfragmented, masked frame (RFC 6455 5.3)."""
    size = len(payload)
    if size <= CONTROL_LIMIT:
        head = bytes((0x80 | code, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((0x80 | code, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | code, 0x80 | 127)) + size.to_bytes(8, "big")
    # Each frame needs a new key that nobody can predict (5.3).
    mask = os.urandom(4)
    # One XOR of two long integers instead of a loop over the bytes, which is slow in Python.
    repeated = (mask * (size // 4 + 1))[:size]
    masked = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
    return head + mask + masked.to_bytes(size, "big")
