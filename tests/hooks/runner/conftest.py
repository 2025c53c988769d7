"""A guest in a directory: the runner, its state, hooks, logs and console, and a Heat to signal."""

import json
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import programs
import pytest
from heat_config import runner as the_runner
from heat_config import transport
from stub_server import Reply, StubServer

HOOKS = Path(__file__).resolve().parents[3] / "hooks"
#: The Python of our programs: only in it do they run in forks of each other.
PYTHON = "/usr/bin/python3"

# Counts its runs, then runs the config, in shell, as the rest of the hook.
SHELL_HOOK = """#!/bin/sh
cat >"$COUNT_DIR/stdin.$$"
id=$(sed -n 's/.*"id": *"\\([^"]*\\)".*/\\1/p' "$COUNT_DIR/stdin.$$" | head -n1)
rm "$COUNT_DIR/stdin.$$"
echo run >>"$COUNT_DIR/$id"
"""
GOOD = 'echo \'{"deploy_stdout":"out","deploy_stderr":"","deploy_status_code":0,"r":"value"}\'\n'


#: Runs a program that does not wait between the three tries of a signal.
AT_ONCE = f"""
import sys
sys.path.insert(0, {str(HOOKS)!r})
from heat_config import transport
transport._pause = lambda _attempt: None
del sys.argv[0]
exec(compile(open(sys.argv[0]).read(), sys.argv[0], "exec"))
"""


class Heat(StubServer):
    """A real HTTP server on loopback that checks and keeps its requests."""

    headers = {"Content-Type": "text/html"}

    @property
    def signals(self) -> list[Any]:
        """The parsed bodies of the signals."""
        return [request.json for request in self.requests]


@pytest.fixture
def heat() -> Iterator[Heat]:
    """A control plane that accepts everything, until ``heat.reply`` says otherwise."""
    server = Heat()
    yield server
    server.close()


@pytest.fixture
def replying(heat: Heat) -> Callable[..., None]:
    """``replying(status, body, headers, act)``: set the answer of *heat* from now on."""

    def reply(
        status: int = 200,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        act: Callable[[Any], None] | None = None,
    ) -> None:
        answer = Reply(status, body, headers or {}, act)
        heat.reply = lambda request: answer

    return reply


@pytest.fixture
def make_heat() -> Iterator[Callable[..., Heat]]:
    """Factory of further control planes: ``make_heat(ssl_context)``."""
    made: list[Heat] = []

    def make(context: ssl.SSLContext | None = None) -> Heat:
        made.append(Heat(context=context))
        return made[-1]

    yield make
    for server in made:
        server.close()


class Nobody:
    """The address of a control plane that refuses connections."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"


@pytest.fixture
def nobody() -> Iterator[Nobody]:
    """Bound, so that no other test's server is given the port, and not listening."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield Nobody(bound.getsockname()[1])


def limits(began: Path) -> Iterator[int]:
    """Yield longer and longer time limits, until a hook has made the file before it was stopped.

    A hook takes a tenth of a second to begin, and seconds on a busy host.
    """
    for seconds in (1, 5, 30):
        yield seconds
        if began.exists():
            return


@dataclass
class Done:
    """The result of a run of the runner, and its output."""

    status: int
    log: str


class Guest:
    """The directories of one machine, and its runner."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "deployed"
        self.logs = root / "log"
        self.document = root / "heat-config"
        self.console = root / "console"
        self.config = root / "heat-config.conf"
        self.counts = root / "counts"
        self.hooks = root / "hooks"
        for directory in (self.counts, self.hooks):
            directory.mkdir()
        self.console.touch()
        self.config.write_text("kill_after = 0.3\n")
        self.settings: dict[str, str] = {}
        self.shell_hook("shell")
        self.real_hook("script", "script.py")

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "LC_ALL": "C",
            "HEAT_CONFIG_LIB": str(HOOKS),
            "HEAT_SHELL_CONFIG": str(self.document),
            "HEAT_CONFIG_DEPLOYED": str(self.state),
            "HEAT_CONFIG_HOOKS": str(self.hooks),
            "HEAT_CONFIG_LOGS": str(self.logs),
            "HEAT_CONFIG_CONSOLE": str(self.console),
            "HEAT_CONFIG_FILE": str(self.config),
            "HEAT_SCRIPT_WORKING": str(self.root / "script"),
            "HEAT_SCRIPT_OUTPUTS": str(self.root / "script-outputs"),
            "COUNT_DIR": str(self.counts),
            **self.settings,
        }

    def shell_hook(self, group: str, body: str = GOOD) -> None:
        """Install a hook in shell that counts its runs."""
        self.hook(group, SHELL_HOOK + body)

    @property
    def gate(self) -> str:
        """A line of shell at which a hook waits for :meth:`open_gate`, a minute at most."""
        gate = self.counts / "gate"
        return f"for _ in $(seq 1200); do test ! -e {gate} || break; sleep 0.05; done\n"

    def open_gate(self) -> None:
        (self.counts / "gate").touch()

    def hook(self, group: str, text: str) -> None:
        path = self.hooks / group
        # It may be a link to a hook of this checkout.
        path.unlink(missing_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def real_hook(self, group: str, file: str) -> None:
        (self.hooks / group).symlink_to(HOOKS / file)

    def metadata(self, *deployments: Any) -> None:
        self.document.write_text(json.dumps(list(deployments)))

    def start(self, *, python: str = PYTHON, wait: bool = False) -> subprocess.Popen[bytes]:
        """Start a pass; with *wait* it pauses between two tries of a signal."""
        program = [] if wait else ["-c", AT_ONCE]
        return subprocess.Popen(
            [python, "-IS", *program, str(HOOKS / "55-heat-config")],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(
        self, *deployments: Any, python: str = PYTHON, timeout: float = 60, wait: bool = False
    ) -> Done:
        """Do one pass, over *deployments* if any are given, else over those of the last one.

        It must not print a traceback, nor anything on stdout.
        """
        if deployments:
            self.metadata(*deployments)
        process = self.start(python=python, wait=wait)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        log = err.decode()
        assert "Traceback" not in log, log
        assert out == b""
        return Done(process.returncode, log)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return programs.completed(
            [PYTHON, "-IS", "-c", AT_ONCE, str(HOOKS / "heat-config"), *arguments],
            env=self.environment,
        )

    def runs(self, key: str) -> int:
        """The number of runs of the shell hook for this id."""
        path = self.counts / key
        return len(path.read_text().splitlines()) if path.exists() else 0

    def record(self, key: str) -> dict[str, Any]:
        return json.loads((self.state / f"{key}.json").read_text())

    def state_of(self, key: str) -> str:
        return self.record(key)["heat_config"]["state"]

    def result(self, key: str) -> dict[str, Any]:
        return json.loads((self.state / f"{key}.notify.json").read_text())

    def log(self, key: str) -> str:
        return (self.logs / f"{key}.log").read_text()

    def failures(self) -> list[str]:
        """The reasons of the signals that failed, from the console."""
        return [
            json.loads(line.partition(" reason=")[2])
            for line in self.console.read_text().splitlines()
            if line.startswith("heat-config: signal-failed")
        ]

    def text_everywhere(self) -> bytes:
        """The content of state, logs and console."""
        texts = [self.console.read_bytes()]
        for directory in (self.state, self.logs):
            texts += [p.read_bytes() for p in directory.rglob("*") if p.is_file()]
        return b"\n".join(texts)


@pytest.fixture
def guest(tmp_path: Path) -> Guest:
    """A machine whose runner has not run yet, with the hooks ``shell`` and ``script``."""
    root = tmp_path / "guest"
    root.mkdir()
    return Guest(root)


@pytest.fixture
def cfn(heat: Heat, make_deployment):
    """A factory of deployments that signal to *heat* with CFN_SIGNAL.

    Heat signs an address once, so the same deployment has the same address in each document.
    *url* replaces the address.
    """
    signed_at = time.strftime("%Y-%m-%dT%H%%3A%M%%3A%SZ", time.gmtime())

    def make(
        config: Any = "", *, server: Heat | Nobody | None = None, id: str = "d-1", **keywords: Any
    ):
        keywords.setdefault("group", "shell")
        verb = keywords.pop("verb", "POST")
        stamp = keywords.pop("stamp", signed_at)
        inputs = dict(keywords.pop("inputs", {}))
        url = keywords.pop("url", None)
        inputs.update(
            deploy_signal_transport="CFN_SIGNAL" if verb == "POST" else "TEMP_URL_SIGNAL",
            deploy_signal_id=url
            or f"{(server or heat).url}/v1/signal/arn%3Aopenstack%3Aheat%3A%3At1%3A"
            f"stacks/demo/sid-1/resources/{id.replace('/', '_')}?SignatureMethod=HmacSHA256&"
            f"Timestamp={stamp}&AWSAccessKeyId=key&Signature=c2VjcmV0",
            deploy_signal_verb=verb,
        )
        return make_deployment(config, id=id, inputs=inputs, **keywords)

    return make


@pytest.fixture
def runner() -> ModuleType:
    """The runner, in this process."""
    # If a pass imported a module, pytest would write its bytecode during that pass.
    transport.preload()
    return the_runner


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """``wait_until(condition)``: return when it is true, fail after a minute."""
    return programs.wait_until
