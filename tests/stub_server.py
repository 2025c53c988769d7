"""An HTTP server on loopback that keeps its requests and answers as a test says."""

import json
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Asked:
    """A request to the server."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at: float = 0.0

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def query(self) -> dict[str, list[str]]:
        return parse_qs(urlsplit(self.path).query)


@dataclass
class Reply:
    """An answer; *act*, if given, takes the handler over instead, and the connection is closed."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    act: Callable[[Any], None] | None = None


class StubServer:
    """A server whose class answers, unless the function *reply* of a test does.

    headers: those of all answers. connections: their number so far.
    """

    headers: Mapping[str, str] = {}

    def __init__(self, host: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> None:
        self.requests: list[Asked] = []
        self.connections = 0
        self.reply: Callable[[Asked], Reply | None] = lambda asked: None
        stub = self

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            # HTTPServer's looks up the name of the address, which can be slow.
            server_bind = socketserver.TCPServer.server_bind
            server_name, server_port = host, 0
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def handle_error(self, request: Any, client_address: Any) -> None:
                return  # the client gave up, as some tests want

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                stub.connections += 1

            def answer(self) -> None:
                sent = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(sent)
                if len(body) < sent:
                    # The sender was killed midway: no server takes that for a request.
                    self.close_connection = True
                    return
                asked = Asked(
                    self.command, self.path, dict(self.headers.items()), body, time.monotonic()
                )
                stub.requests.append(asked)
                reply = stub.reply(asked) or stub.answer(asked)
                if reply.act is not None:
                    self.close_connection = True
                    reply.act(self)
                    return
                self.send_response(reply.status)
                bodiless = reply.status in (204, 304)
                length = {} if bodiless else {"Content-Length": str(len(reply.body))}
                for name, value in {**stub.headers, **length, **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD" and not bodiless:
                    self.wfile.write(reply.body)

            do_GET = do_POST = do_DELETE = do_HEAD = do_PUT = do_CONNECT = answer

            def log_message(self, *_arguments: object) -> None:
                return

        self._server = Server((host, 0), Handler)
        self.port = self._server.server_address[1]
        self.host = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self.url = f"{'http' if context is None else 'https'}://{self.host}"
        if context is not None:
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def answer(self, asked: Asked) -> Reply:
        """Return the answer to a request that *reply* leaves."""
        return Reply()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
