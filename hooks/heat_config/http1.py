"""One HTTP/1.1 exchange (RFC 9112) over a Stream, with a size limit."""

from __future__ import annotations

import sys

from .stream import CHUNK, BrokeOff, TooLong

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from .deadline import Deadline
    from .stream import Stream

# Bounds on the head of an answer: a broken or hostile server must not fill the memory.
LINE_LIMIT = 1 << 16
HEADER_LIMIT = 200
INTERIM_LIMIT = 10
# These have no body, whatever their headers say (RFC 9112 6.3).
NO_BODY = (204, 304)


class Malformed(Exception):
    """The answer is not HTTP."""


class Answer:
    """An answer: status, headers ({lower-case name: text}), body (bytes), and its url."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes, keep: bool) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.keep = keep
        self.url = ""


def head(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """Return the bytes of a request. Raises ValueError for text that it cannot contain."""
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    # A line end in a value would begin a header, or a request, of its own.
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header or the path contains a line end")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def read_answer(
    stream: Stream,
    method: str,
    deadline: Deadline,
    limit: int,
    *,
    cut: bool = False,
    sink: Callable[[bytes], Any] | None = None,
) -> Answer:
    """Return the answer to a *method* request; *limit*: bytes of the body.

    cut: return the first *limit* bytes of a longer body, and no body decompressed; otherwise a
    longer one is TooLong. sink: called with each piece of the body of a successful answer, of any
    length, instead of keeping it. Raises Malformed, TooLong, OSError.
    """
    for _ in range(INTERIM_LIMIT):
        version, status = _status(stream.line(LINE_LIMIT, deadline))
        headers = _headers(stream, deadline)
        # Answers below 200 precede the real one (RFC 9110 15.2); 101 is the last in HTTP.
        if status >= 200 or status == 101:
            break
    else:
        raise Malformed
    tokens = headers.get("connection", "").lower()
    # HTTP/1.1 keeps a connection by default, HTTP/1.0 does not (RFC 9112 9.3).
    keep = "close" not in tokens if version >= (1, 1) else "keep-alive" in tokens
    keep = keep and status != 101
    length = _length(headers)
    chunked = "chunked" in headers.get("transfer-encoding", "").lower()
    body = bytearray()
    if not (method in ("HEAD", "CONNECT") or status in NO_BODY or status == 101):
        # A body of unknown length ends with the connection.
        keep = keep and (chunked or length is not None)
        is_sunk = sink is not None and 200 <= status < 300
        most = sys.maxsize if is_sunk else limit
        # Transfer-Encoding overrides Content-Length (RFC 9112 6.3).
        pieces = _chunks if chunked else _whole
        for piece in pieces(stream, deadline, length, most, cut):
            if sink is not None and is_sunk:
                sink(bytes(piece))
            else:
                body += piece
    if cut:
        return Answer(status, headers, bytes(body), False)
    return Answer(status, headers, _plain(bytes(body), headers, limit), keep)


def _status(line: bytes) -> tuple[tuple[int, int], int]:
    parts = line.split(None, 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or len(parts[1]) != 3:
        raise Malformed
    try:
        minor, status = int(parts[0][7:]), int(parts[1])
    except ValueError:
        raise Malformed from None
    if status < 100:
        raise Malformed
    return (1, minor), status


def _headers(stream: Stream, deadline: Deadline) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(HEADER_LIMIT):
        line = stream.line(LINE_LIMIT, deadline)
        if not line:
            return headers
        # Latin-1 decodes every byte.
        name, colon, value = line.decode("latin-1").partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    raise Malformed


def _length(headers: dict[str, str]) -> int | None:
    text = headers.get("content-length")
    if text is None:
        return None
    # int() would also accept a sign, blanks, underscores and other scripts' digits. 18 digits fit
    # 64 bits.
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Malformed
    return int(text)


def _whole(
    stream: Stream, deadline: Deadline, length: int | None, room: int, cut: bool
) -> Iterator[bytearray]:
    """Yield the pieces of a body of *length*, or of one that ends with the connection."""
    if length is not None:
        if length > room and not cut:
            raise TooLong
        yield from _exactly(stream, min(length, room), deadline)
        return
    while True:
        try:
            piece = stream.some(CHUNK, deadline)
        except BrokeOff:
            return
        if len(piece) > room:
            if not cut:
                raise TooLong
            yield piece[:room]
            return
        room -= len(piece)
        yield piece


def _chunks(
    stream: Stream, deadline: Deadline, _length: int | None, room: int, cut: bool
) -> Iterator[bytearray]:
    """Yield the pieces of a chunked body (RFC 9112 7.1); read the trailers after it."""
    while True:
        # Chunk extensions follow the semicolon.
        size = stream.line(LINE_LIMIT, deadline).partition(b";")[0].strip()
        try:
            # More than 16 hexadecimal digits exceed 64 bits, and any room.
            count = int(size, 16) if len(size) <= 16 else room + 1
        except ValueError:
            raise Malformed from None
        # int() accepts a sign.
        if count < 0:
            raise Malformed
        if count > room:
            if not cut:
                raise TooLong
            yield from _exactly(stream, room, deadline)
            return
        if count == 0:
            # The trailers. Unread, they would begin the next answer on this connection.
            _headers(stream, deadline)
            return
        room -= count
        yield from _exactly(stream, count, deadline)
        # The data of a chunk is followed by CR LF, so this line is empty.
        if stream.line(2, deadline):
            raise Malformed


def _exactly(stream: Stream, count: int, deadline: Deadline) -> Iterator[bytearray]:
    while count > 0:
        piece = stream.some(min(count, CHUNK), deadline)
        count -= len(piece)
        yield piece


def _plain(body: bytes, headers: dict[str, str], limit: int) -> bytes:
    """Decompress the body: an object may be stored compressed, although we did not ask for it."""
    coding = headers.get("content-encoding", "").lower()
    if coding not in ("gzip", "x-gzip", "deflate") or not body:
        return body
    import zlib

    # 32: detect the header, that of gzip or of zlib.
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        # Bounded: a few kilobytes may decompress to gigabytes.
        plain = unpack.decompress(body, limit + 1)
    except zlib.error:
        raise Malformed from None
    if len(plain) > limit:
        raise TooLong
    if not unpack.eof:
        raise Malformed
    return plain
