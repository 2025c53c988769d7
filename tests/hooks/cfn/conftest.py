"""The cfn commands of this checkout, run with each installed Python, and a server for them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

WANTED = ("3.9", "3.11", "3.12", "3.13")


def _pythons() -> dict[str, str]:
    """Return {version: program} of the guests' Pythons on this host; ours is always one."""
    interpreters = {}
    places = [*Path.home().glob(".pyenv/versions/*/bin/python"), *Path("/usr/bin").glob("python3*")]
    for program in sorted(places):
        match = re.search(r"(?:versions/|python)(3\.\d+)", str(program))
        if match and match[1] in WANTED and os.access(program, os.X_OK):
            interpreters.setdefault(match[1], str(program))
    return interpreters or {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}


PYTHONS = _pythons()


#: Runs a command that does not wait between its attempts to reach a server.
AT_ONCE = """
import os, sys
sys.path.insert(0, os.environ["HEAT_CONFIG_LIB"])
from heat_cfn import web
web.time = type("Clock", (), {"sleep": lambda _seconds: None})
del sys.argv[0]
exec(compile(open(sys.argv[0]).read(), sys.argv[0], "exec"))
"""


@pytest.fixture
def cfn(hooks_dir: Path, tmp_path: Path):
    """Run a cfn command: ``cfn("cfn-init", "-c", "a", metadata={...}, env={}, python="3.9")``.

    Its state, cache and logs are in tmp_path; *metadata* is that of Heat's user data there.
    """

    def run(command, *arguments, metadata=None, env=None, python=None, check=None, stdin=None):
        state = tmp_path / "state"
        state.mkdir(exist_ok=True)
        if metadata is not None:
            (state / "cfn-init-data").write_text(
                metadata if isinstance(metadata, str) else json.dumps(metadata)
            )
        done = subprocess.run(
            [
                *(PYTHONS[python] if python else sys.executable, "-I", "-c", AT_ONCE),
                *(hooks_dir / command, *arguments),
            ],
            env={
                "PATH": os.environ["PATH"],
                "HEAT_CONFIG_LIB": str(hooks_dir),
                "HEAT_CFN_STATE_DIR": str(state),
                "HEAT_CFN_CACHE_DIR": str(tmp_path / "cache"),
                "HEAT_CFN_LOG_DIR": str(tmp_path),
                **(env or {}),
            },
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert "Traceback" not in done.stderr, done.stderr
        if check is not None:
            assert done.returncode == check, done.stdout + done.stderr
        return done

    return run


@dataclass
class Heard:
    """A request that the server got."""

    verb: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """An HTTP server on the loopback; *answers* are used up in turn, the last one stays."""

    url: str
    answers: list = field(default_factory=lambda: [(200, b"")])
    heard: list[Heard] = field(default_factory=list)
    check: Callable[[Heard], int] | None = None
    connected: list[str] = field(default_factory=list)
    serve: Callable[..., None] = field(default=lambda *_: None)


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that gives the set answers and keeps the requests."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            length = int(self.headers.get("Content-Length") or 0)
            heard = Heard(self.command, self.path, dict(self.headers), self.rfile.read(length))
            made.heard.append(heard)
            answers = made.answers
            status, body, *more = answers.pop(0) if len(answers) > 1 else answers[0]
            if made.check is not None:
                status = made.check(heard)
            if status == "cut":
                self.connection.close()
                return
            self.send_response(status)
            for name, value in (more[0] if more else {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) + (10 if status == 299 else 0)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = answer

        def do_CONNECT(self):
            made.connected.append(self.path)
            self.send_error(403)

        def log_message(self, *_arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        made = Server(f"http://127.0.0.1:{http.server_address[1]}")

        def serve(door: socket.socket, context: ssl.SSLContext | None = None) -> None:
            """Serve on another listening socket as well, by TLS with a context."""

            def accept():
                with contextlib.suppress(OSError):  # until the test closes it
                    while True:
                        connection, peer = door.accept()
                        with contextlib.suppress(OSError):
                            if context is not None:
                                connection = context.wrap_socket(connection, server_side=True)
                            http.finish_request(connection, peer)
                            http.shutdown_request(connection)

            threading.Thread(target=accept, daemon=True).start()

        made.serve = serve
        thread = threading.Thread(target=http.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield made
        finally:
            http.shutdown()
            thread.join()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with an argument ``python`` under each Python that is installed."""
    if "python" in metafunc.fixturenames:
        metafunc.parametrize("python", list(PYTHONS))
