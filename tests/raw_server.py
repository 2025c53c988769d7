"""Servers of bytes on loopback: what a test does with each connection, and a forward proxy."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from stub_server import Asked

SECONDS = 5


class Listener:
    """A port of this host; *serve* gets each connection, in a thread of its own.

    An OSError of *serve* ends its connection. A connection that does nothing ends, too.
    """

    def __init__(self, serve: Callable[[socket.socket], object]) -> None:
        self._serve = serve
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._socket.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}"
        self._open: dict[threading.Thread, socket.socket] = {}
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_exception: object) -> None:
        """End all connections; a thread that does not notice is an error."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(SECONDS)
        self._socket.close()
        left = dict(self._open)
        for thread, connection in left.items():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(SECONDS)
        assert not [thread for thread in (self._thread, *left) if thread.is_alive()]

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                thread = threading.Thread(target=self._one, args=(connection,), daemon=True)
                self._open[thread] = connection
                thread.start()

    def _one(self, connection: socket.socket) -> None:
        connection.settimeout(SECONDS)
        try:
            with connection, suppress(OSError):
                self._serve(connection)
        finally:
            del self._open[threading.current_thread()]


def request(connection: socket.socket) -> Asked:
    """Read an HTTP request; raises ConnectionError if the connection ends before the request."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += some(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, version = first.split(" ")
    assert version == "HTTP/1.1"
    headers = dict(line.split(": ", 1) for line in lines)
    while len(body) < int(headers.get("Content-Length", 0)):
        body += some(connection)
    return Asked(method, path, headers, body)


def some(connection: socket.socket) -> bytes:
    """Read at least a byte; raises ConnectionError at the end."""
    data = connection.recv(65536)
    if not data:
        raise ConnectionAbortedError
    return data


class ForwardProxy(Listener):
    """A forward proxy that finds every name on loopback, and keeps the requests.

    :ivar answer: what it answers itself to every request.
    """

    def __init__(self) -> None:
        self.requests: list[Asked] = []
        self.answer = b""
        super().__init__(self._forward)

    def _forward(self, connection: socket.socket) -> None:
        asked = request(connection)
        self.requests.append(asked)
        if self.answer:
            connection.sendall(self.answer)
            return
        is_tunnel = asked.method == "CONNECT"
        parts = urlsplit(f"//{asked.path}" if is_tunnel else asked.path)
        with socket.create_connection(("127.0.0.1", parts.port or 80), SECONDS) as other:
            if is_tunnel:
                connection.sendall(b"HTTP/1.1 200 Made\r\n\r\n")
            else:
                head = f"{asked.method} {parts.path}?{parts.query} HTTP/1.0\r\nHost: {parts.netloc}"
                length = f"Content-Length: {len(asked.body)}\r\n\r\n"
                other.sendall(f"{head}\r\n{length}".encode() + asked.body)
            pairs = {connection: other, other: connection}
            while ready := select.select(list(pairs), [], [], SECONDS)[0]:
                for source in ready:
                    pairs[source].sendall(some(source))
