"""The cfn commands of this checkout, run with each installed Python, and a server for them."""

from __future__ import annotations

import json
import os
import ssl
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keystoneclient.contrib.ec2 import utils as ec2
from programs import completed, find_python
from stub_server import Asked, Reply, StubServer

#: The secret key of signatures.
SECRET = "SK-planted"
#: The guests' Pythons on this host, by version; ours is always one.
PYTHONS = {
    version: program
    for version in ("3.9", "3.11", "3.12", "3.13")
    if (program := find_python(version))
} or {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}

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
        done = completed(
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
            timeout=120,
        )
        assert "Traceback" not in done.stderr, done.stderr
        if check is not None:
            assert done.returncode == check, done.stdout + done.stderr
        return done

    return run


class Server(StubServer):
    """A server whose *answers* are used up in turn; the last one stays.

    An answer is (status, body, headers): with the status 299 the body is cut short, and with "cut"
    there is no answer. *check* returns the status for a request.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        super().__init__(context=context)
        self.answers: list = [(200, b"")]
        self.check: Callable[[Asked], int] | None = None

    def answer(self, asked: Asked) -> Reply:
        status, body, *more = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if self.check is not None:
            status = self.check(asked)
        if status == "cut":
            return Reply(act=lambda handler: handler.connection.close())
        headers = more[0] if more else {}
        if status == 299:
            headers = {**headers, "Content-Length": str(len(body) + 10), "Connection": "close"}
        return Reply(status, body, headers)


def judge(asked: Asked) -> int:
    """Answer as Heat's cfn API does: 403 unless the signature covers exactly the request.

    A form in the body counts as parameters of the request (heat: api/aws/ec2token.py).
    """
    parts = urllib.parse.urlsplit(asked.path)
    parameters = dict(urllib.parse.parse_qsl(parts.query))
    if "form" in asked.headers.get("Content-Type", ""):
        parameters.update(urllib.parse.parse_qsl(asked.body.decode(), keep_blank_values=True))
    signature = parameters.pop("Signature", "")
    request = {
        "host": asked.headers["Host"],
        "verb": asked.method,
        "path": urllib.parse.unquote(parts.path),
        "params": parameters,
    }
    return 200 if signature == ec2.Ec2Signer(SECRET).generate(request) else 403


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that gives the set answers and keeps the requests."""
    made = Server()
    yield made
    made.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with an argument ``python`` under each Python that is installed."""
    if "python" in metafunc.fixturenames:
        metafunc.parametrize("python", list(PYTHONS))
