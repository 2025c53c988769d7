"""One HTTP server for all sources, and both versions of os-collect-config to run against it."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

import pytest
from heat_agent.collect import settings
from heat_agent.collect.agent import Agent
from heat_agent.collect.log import Log
from heat_agent.collect.program import Seams
from heat_agent.collect.signals import Signals
from heat_agent.collect.trust import Trust
from heat_agent.collect.web import Client
from programs import program
from raw_server import Listener
from stub_server import Asked, Reply, StubServer

HOOKS = Path(__file__).resolve().parents[4] / "hooks"
OURS = HOOKS / "os-collect-config"
REAL = Path(sys.executable).with_name("os-collect-config")
SECRET = "sk-7f3a"
TOKEN = "gAAAA-token-of-the-user"
PASSWORD = "pw-9d1c"
SECONDS = 60


@pytest.fixture
def listen() -> Iterator[Callable[[Callable[[socket.socket], object]], Listener]]:
    """Make listeners that are closed after the test."""
    with ExitStack() as stack:
        yield lambda serve: stack.enter_context(Listener(serve))


class Cloud(StubServer):
    """Nova's metadata, Heat's two APIs, Keystone, Zaqar and Swift on one loopback port.

    documents: the document of each source. reply: may override the answer to a request.
    """

    def __init__(self, host: str = "127.0.0.1", context: ssl.SSLContext | None = None) -> None:
        super().__init__(host, context)
        self.documents: dict[str, Any] = {}
        self.queue: list[Any] = []
        self.ec2: dict[str, str] = {}
        self.tokens = 0
        self.refused: set[str] = set()
        self.versions: Any = None
        self.websocket = ""

    def clear(self) -> None:
        """Reset all settings of a test."""
        fresh = {"requests": [], "documents": {}, "queue": [], "ec2": {}, "refused": set()}
        self.__dict__.update(fresh)
        self.versions = None
        self.websocket = ""
        self.tokens = self.connections = 0
        self.reply = lambda asked: None

    def answer(self, asked: Asked) -> Reply:
        path = urlsplit(asked.path).path
        for prefix, act in (
            ("/cfn/", self._cfn),
            ("/keystone/", self._keystone),
            ("/heat/", self._heat),
            ("/zaqar/", self._zaqar),
            ("/ec2/", self._ec2),
            ("/swift/", self._swift),
        ):
            if path.startswith(prefix):
                return act(asked, path)
        return Reply(404)

    def _cfn(self, asked: Asked, path: str) -> Reply:
        resource = asked.query["LogicalResourceId"][0]
        return Reply(
            body=cfn_answer(self.documents[f"cfn:{resource}"]),
            headers={"Content-Type": "application/xml"},
        )

    def _keystone(self, asked: Asked, path: str) -> Reply:
        if asked.method == "GET":
            listed = self.versions or {"version": self.version_3(path)}
            return Reply(
                300 if "versions" in listed else 200,
                json.dumps(listed).encode(),
                {"Content-Type": "application/json"},
            )
        self.tokens += 1
        value = f"{TOKEN}-{self.tokens}"
        places = (
            ("orchestration", f"{self.url}/heat/v1/p1"),
            ("messaging", f"{self.url}/zaqar"),
            ("messaging-websocket", self.websocket),
        )
        if path.endswith("/v2.0/tokens"):
            catalog = [
                {"type": kind, "endpoints": [{"region": "here", "publicURL": url}]}
                for kind, url in places
            ]
            token = {"id": value, "expires": "2096-01-02T04:04:05Z"}
            access = {"token": token, "serviceCatalog": catalog, "user": {"id": "u1"}}
            return Reply(body=json.dumps({"access": access}).encode())
        catalog = [
            {
                "type": kind,
                "name": kind,
                "id": kind,
                "endpoints": [
                    {
                        "id": f"{kind}-{region}",
                        "interface": "public",
                        "region": region,
                        "region_id": region,
                        "url": url if region == "here" else f"{self.url}/elsewhere",
                    }
                    for region in ("here", "there")
                ],
            }
            for kind, url in places
        ]
        token = {
            "methods": ["password"],
            "issued_at": "2026-01-02T03:04:05.000000Z",
            "expires_at": "2096-01-02T04:04:05.000000Z",
            "user": {"id": "u1", "name": "u", "domain": {"id": "d", "name": "d"}},
            "project": {"id": "p1", "name": "p", "domain": {"id": "d", "name": "d"}},
            "roles": [],
            "catalog": catalog,
        }
        headers = {"Content-Type": "application/json", "X-Subject-Token": value}
        return Reply(201, json.dumps({"token": token}).encode(), headers)

    def version_3(self, path: str = "/keystone/v3") -> dict[str, Any]:
        """Keystone's description of its v3 API."""
        return {
            "id": "v3.14",
            "status": "stable",
            "links": [{"rel": "self", "href": f"{self.url}/keystone/v3/"}],
            "media-types": [],
            "updated": "2020-04-07T00:00:00Z",
        }

    def _heat(self, asked: Asked, path: str) -> Reply:
        if asked.headers.get("X-Auth-Token") in self.refused | {None}:
            return Reply(401)
        if path == "/heat/v1/p1/stacks/sid-1":
            return Reply(302, headers={"Location": f"{self.url}/heat/v1/p1/stacks/demo/sid-1"})
        if path != "/heat/v1/p1/stacks/demo/sid-1/resources/server/metadata":
            return Reply(404)
        document = json.dumps({"metadata": self.documents["heat"]}).encode()
        return Reply(body=document, headers={"Content-Type": "application/json"})

    def _zaqar(self, asked: Asked, path: str) -> Reply:
        if asked.headers.get("X-Auth-Token") in self.refused | {None}:
            return Reply(401)
        if (asked.method, path) != ("DELETE", "/zaqar/v2/queues/q1/messages"):
            return Reply(404)
        messages = [{"id": "m1", "age": 1, "ttl": 3600, "body": b} for b in self.queue[:1]]
        del self.queue[:1]
        document = json.dumps({"messages": messages}).encode()
        return Reply(body=document, headers={"Content-Type": "application/json"})

    def _ec2(self, asked: Asked, path: str) -> Reply:
        if path not in self.ec2:
            return Reply(404)
        return Reply(body=self.ec2[path].encode(), headers={"Content-Type": "text/plain"})

    def _swift(self, asked: Asked, path: str) -> Reply:
        document = json.dumps(self.documents["request"]).encode()
        return Reply(body=document, headers={"Content-Type": "application/json"})


def cfn_answer(document: Any) -> bytes:
    """Heat's answer to DescribeStackResource; *document* is the metadata or its JSON."""
    text = document if isinstance(document, str) else json.dumps(document)
    return (
        "<DescribeStackResourceResponse><DescribeStackResourceResult><StackResourceDetail>"
        f"<StackName>demo</StackName><Metadata>{escape(text)}</Metadata>"
        "</StackResourceDetail></DescribeStackResourceResult></DescribeStackResourceResponse>"
    ).encode("ascii", "xmlcharrefreplace")


@pytest.fixture(scope="session")
def one_cloud() -> Iterator[Cloud]:
    made = Cloud()
    yield made
    made.close()


@pytest.fixture
def cloud(one_cloud: Cloud) -> Cloud:
    """The cloud, empty."""
    one_cloud.clear()
    return one_cloud


@dataclass(frozen=True)
class Done:
    """The result of one run; files: {path: (mode, bytes)} of the guest."""

    status: int
    stdout: str
    stderr: str
    files: dict[str, tuple[int, bytes]]


class RealPrograms:
    """The real os-collect-config, loaded once; see real_program.py."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("real_program.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LC_ALL": "C", "PYTHONWARNINGS": "ignore"},
        )

    def run(self, **run: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(run) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(SECONDS)


@pytest.fixture(scope="session")
def real_programs() -> Iterator[RealPrograms]:
    made = RealPrograms()
    yield made
    made.close()


class Guest:
    """A directory with an agent's home, cache and configuration."""

    def __init__(self, root: Path, real: Callable[[], RealPrograms]) -> None:
        self.root = root
        self._real = real
        self.begin()

    def begin(self) -> None:
        """Reset it to the state before the first run."""
        for path in self.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name in ("home", "cache", "local", "run", "bin"):
            (self.root / name).mkdir(mode=0o700)
        self.program("blkid", "exit 2")

    def program(self, name: str, text: str) -> None:
        """Write a shell script to the first directory of PATH."""
        program(self.root / "bin" / name, text)

    def write(self, name: str, content: Any, mode: int = 0o600) -> Path:
        """Write a file; content other than text is written as JSON."""
        path = self.root / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        path.chmod(mode)
        return path

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "PATH": f"{self.root / 'bin'}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.root / "home"),
            "LC_ALL": "C",
            "HEAT_CONFIG_LIB": str(HOOKS),
            "HEAT_CONFIG_DEPLOYED": str(self.root / "deployed"),
            "HEAT_CONFIG_FILE": str(self.root / "no-heat-config.conf"),
            **more,
        }

    def conf(self, text: str = "", command: str | None = None, **defaults: Any) -> Path:
        """Write the configuration: *text* after a [DEFAULT] with the paths of this guest."""
        lines = [
            "[DEFAULT]",
            f"cachedir = {self.root}/cache",
            f"backup_cachedir = {self.root}/run/backup",
            *(f"{name} = {value}" for name, value in defaults.items()),
        ]
        if command is not None:
            lines.append(f"command = {command}")
        local = f"[local]\npath = {self.root}/local\n[heat_local]\npath = {self.root}/init-data\n"
        return self.write("home/os-collect-config.conf", "\n".join(lines) + f"\n{local}{text}\n")

    def run(self, which: str, *arguments: str, **env: str) -> Done:
        """Run one of the two programs, ``"real"`` or ``"ours"``, to its end."""
        environment = self.environment(**env)
        out, err = self.root / "stdout", self.root / "stderr"
        if which == "real":
            status = self._real().run(
                argv=[str(REAL), *arguments],
                env=environment,
                cwd=str(self.root),
                stdout=str(out),
                stderr=str(err),
            )
        else:
            with out.open("wb") as stdout, err.open("wb") as stderr:
                status = subprocess.run(
                    [str(OURS), *arguments],
                    env=environment,
                    cwd=self.root,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    timeout=SECONDS,
                ).returncode
        done = Done(status, out.read_text(), err.read_text(errors="replace"), self.files())
        out.unlink()
        err.unlink()
        return done

    def files(self) -> dict[str, tuple[int, bytes]]:
        """Return {path: (mode, bytes)} of the guest."""
        return {
            str(path.relative_to(self.root)): (
                stat.S_IMODE(path.stat().st_mode),
                path.read_bytes() if path.is_file() else b"",
            )
            for path in sorted(self.root.rglob("*"))
            if path.name not in ("stdout", "stderr")
        }


def agent_of(
    guest: Guest,
    command: Callable[[str, list[str]], int],
    write: Callable[[int, str], None] = lambda _level, sentence: None,
) -> Any:
    """The Agent of a guest's configuration, in this process."""
    chosen = settings.load([], guest.environment())
    seams = Seams(command=command, idle=lambda: None)
    return Agent(chosen, Log(write, 0), Client(Trust({}), {}), seams, Signals())


@pytest.fixture
def guest(tmp_path: Path, request: pytest.FixtureRequest) -> Guest:
    """A guest in *tmp_path*; the real program is loaded on first use."""
    root = tmp_path / "guest"
    root.mkdir()
    return Guest(root, lambda: request.getfixturevalue("real_programs"))
