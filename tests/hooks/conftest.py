"""Fixtures of the hook tests: run a hook file the way the runner does and read its answer."""

import fcntl
import functools
import json
import os
import shutil
import ssl
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from hotplate_command import hotplate
from programs import completed

from hotplate.settings import cache_dir

HOOKS = Path(__file__).resolve().parents[2] / "hooks"
# Tests import the libraries of the programs, as these do.
sys.path.insert(0, str(HOOKS))

HEAT_AGENTS = (
    "heat-agents==13.0.0 --hash=sha256:"
    "346099c6e9f16bd5e68913b825013acdd97b6743a1764ebcfc08d6528cefa9d6"
)

#: Inputs of every type that JSON has, and texts that are hard to pass on.
EVERY_TYPE = {
    "text": "x 'y' \"z\"\nü☃🍲",
    "empty": "",
    "null": None,
    "true": True,
    "number": 7,
    "float": 1.5,
    "list": [1, "a", None],
    "map": {"a": {"b": [False]}},
    "nul": "a\0b",
}


@dataclass(frozen=True)
class Answer:
    """A hook's output, parsed, its status and its other effects."""

    status: int
    stdout: str
    stderr: str
    outputs: dict[str, Any]
    log: str
    exit_status: int
    raw: bytes = field(repr=False)


@pytest.fixture(scope="session")
def hooks_dir() -> Path:
    """The directory of the hook programs in this checkout."""
    return HOOKS


def _kept(name: str, made_of: str, make: Callable[[Path], None]) -> Path:
    directory = cache_dir() / "tools" / name
    directory.mkdir(parents=True, exist_ok=True)
    folder, done = directory / "made", directory / "done"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists() or not done.exists() or done.read_text() != made_of:
            done.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            done.write_text(made_of)
    return folder


@pytest.fixture(scope="session")
def kept():
    """Return a folder of the cache that a function fills once on this host.

    ``kept("salt", "3008.2", lambda folder: ...)``: anew when the second text has changed.
    """
    return _kept


def run_or_skip(reason: str, *argv: str) -> None:
    """Run a command that needs the network; skip the test with its error when it fails."""
    done = completed(argv, timeout=600)
    if done.returncode:
        pytest.skip(f"{reason}: {done.stderr.strip()[-300:]}")


@pytest.fixture(scope="session")
def fetch(kept):
    """Fetch one file from the package index, and keep it; skip when unavailable.

    ``fetch("name==1.0 --hash=sha256:...", "--only-binary")``
    """

    def get(wanted: str, kind: str) -> Path:
        name = wanted.partition("==")[0]

        def download(folder: Path) -> None:
            pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", kind, ":all:")
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
                requirements.write(wanted)
                requirements.flush()
                words = ("--require-hashes", "-d", str(folder), "-r", requirements.name)
                run_or_skip(f"{name} cannot be had", *pip, *words)

        (file,) = kept(name, f"{wanted} {kind}", download).iterdir()
        return file

    return get


@pytest.fixture(scope="session")
def heat_agents(fetch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of heat-agents."""
    folder = tmp_path_factory.mktemp("heat-agents")
    with tarfile.open(fetch(HEAT_AGENTS, "--no-binary")) as tar:
        tar.extractall(folder, filter="data")
    return folder / "heat_agents-13.0.0"


@pytest.fixture(scope="session")
def secure(tmp_path_factory: pytest.TempPathFactory):
    """Make a TLS server's context with a self-signed certificate; return also the file of that.

    ``secure("IP:127.0.0.1")``: for a subject's alternative name
    """

    @functools.cache
    def make(name: str) -> tuple[ssl.SSLContext, Path]:
        folder = tmp_path_factory.mktemp("certificate")
        paths = folder / "cert.pem", folder / "key.pem"
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", "2"]
        command += ["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=heat"]
        command += ["-addext", f"subjectAltName={name}"]
        command += ["-out", str(paths[0]), "-keyout", str(paths[1])]
        subprocess.run(command, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*paths)
        return context, paths[0]

    return make


@pytest.fixture
def run_theirs(heat_agents: Path, tmp_path: Path):
    """Run the hook of a group that heat-agents has; return its answer, None where it crashed.

    ``run_theirs("hiera", deployment, env={"HEAT_HIERA_CONFIG": ...}, python=sys.executable)``;
    the environment is built as that of ``run_hook``.
    """

    def run(
        group: str,
        deployment: dict[str, Any],
        *,
        env: dict[str, str],
        python: str = sys.executable,
        timeout: float = 60,
    ) -> dict[str, Any] | None:
        done = subprocess.run(
            [python, str(heat_agents / f"heat-config-{group}/install.d/hook-{group}.py")],
            input=json.dumps(deployment).encode(),
            capture_output=True,
            timeout=timeout,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LC_ALL": "C", **env},
        )
        if done.returncode != 0:
            assert b"Traceback" in done.stderr, done.stderr
            return None
        return json.loads(done.stdout) if done.stdout else None

    return run


@pytest.fixture
def make_deployment():
    """A factory of deployment documents as Heat's metadata has them.

    ``make_deployment(config="...", inputs={"foo": 1}, outputs=["result"], options={}, group=...,
    action="CREATE", id=..., name=...)``; *inputs* may also be Heat's own list form.
    """
    counter = iter(range(1, 1_000_000))

    def make(
        config: Any = "",
        *,
        inputs: Any = None,
        outputs: Any = (),
        options: Any = None,
        group: str = "script",
        action: str = "CREATE",
        id: str | None = None,
        name: str = "a-deployment",
        **more: Any,
    ) -> dict[str, Any]:
        if isinstance(inputs, dict) or inputs is None:
            inputs = [
                {"name": name, "type": "String", "value": value}
                for name, value in (inputs or {}).items()
            ]
        derived = {
            "deploy_server_id": "0a1b2c3d-0000-4000-8000-000000000001",
            "deploy_action": action,
            "deploy_stack_id": "stack/8f0c6e5e-0000-4000-8000-000000000002",
            "deploy_resource_name": "deployment",
            "deploy_signal_transport": "NO_SIGNAL",
        }
        present = {item.get("name") for item in inputs if isinstance(item, dict)}
        inputs = [
            *inputs,
            *(
                {"name": key, "type": "String", "value": value}
                for key, value in derived.items()
                if key not in present
            ),
        ]
        return {
            "id": id or f"6f1c0000-0000-4000-8000-{next(counter):012d}",
            "name": name,
            "group": group,
            "config": config,
            "inputs": inputs,
            "outputs": [
                {"name": item, "type": "String", "error_output": False}
                if isinstance(item, str)
                else item
                for item in outputs
            ],
            "options": {} if options is None else options,
            "creation_time": "2026-01-02T03:04:05Z",
            **more,
        }

    return make


@pytest.fixture
def run_hook(tmp_path: Path):
    """Run a file of hooks/ with a deployment on stdin and return its Answer.

    ``run_hook("script.py", deployment, env={"HEAT_SCRIPT_WORKING": ...}, python=sys.executable,
    timeout=60)``. The environment is built, not inherited: PATH, HOME in tmp_path,
    HEAT_CONFIG_LIB, and *env*. A hook must answer with one JSON object and exit status 0; that
    is asserted here. *deployment* may be bytes, to hand it something that is not a deployment.
    """

    def run(
        file: str,
        deployment: dict[str, Any] | bytes,
        *,
        env: dict[str, str] | None = None,
        python: str = sys.executable,
        timeout: float = 60,
    ) -> Answer:
        data = deployment if isinstance(deployment, bytes) else json.dumps(deployment).encode()
        path = HOOKS / file
        first = path.read_bytes().split(b"\n", 1)[0].decode()
        flags = first.split()[1:] if first.startswith("#!") else []
        done = subprocess.run(
            [python, *flags, str(path)],
            input=data,
            capture_output=True,
            timeout=timeout,
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "LC_ALL": "C",
                "HEAT_CONFIG_LIB": str(HOOKS),
                **(env or {}),
            },
        )
        log = done.stderr.decode("utf-8", "replace")
        assert done.returncode == 0, log
        assert "Traceback" not in log
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        assert isinstance(answer["deploy_status_code"], int)
        return Answer(
            status=answer.pop("deploy_status_code"),
            stdout=answer.pop("deploy_stdout"),
            stderr=answer.pop("deploy_stderr"),
            outputs=answer,
            log=log,
            exit_status=done.returncode,
            raw=done.stdout,
        )

    return run


@pytest.fixture
def hook_of(run_hook, make_deployment):
    """Make a function that runs the hook of a group on a config, and returns its Answer.

    ``hook_of("script", timeout=60, HEAT_SCRIPT_WORKING=tmp_path / "work")``; the function's
    keyword *env* is added to these settings, all others go to make_deployment.
    """

    def make(group: str, *, timeout: float = 60, **settings: object):
        given = {name: str(value) for name, value in settings.items()}

        def run(config: Any = "", *, env: dict[str, str] | None = None, **keywords: Any) -> Answer:
            return run_hook(
                f"{group.replace('-', '_')}.py",
                make_deployment(config, **{"group": group, **keywords}),
                env={**given, **(env or {})},
                timeout=timeout,
            )

        return run

    return make


@dataclass(frozen=True)
class Checked:
    """The lines of the contract of hooks, as ``hotplate hook check`` reports them."""

    lines: dict[str, dict[str, Any]]

    @property
    def problems(self) -> dict[str, list[str]]:
        return {
            name: [fault["reason"] for fault in line["faults"]]
            for name, line in self.lines.items()
            if line["faults"]
        }

    @property
    def not_tried(self) -> set[str]:
        return {name for name, line in self.lines.items() if line["state"] == "not tried"}

    @property
    def excepted(self) -> set[str]:
        return {name for line in self.lines.values() for name in line["excepted"]}


@pytest.fixture
def check_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Check a hook against the contract, in this process.

    ``check_hook("docker_cmd.py", contract={...}, PATH=...)``; the contract is for a file, and the
    environment is the tests', with these variables. Changed files are searched in a folder of our
    own: other programs on this host change theirs.
    """

    def check(hook: str | Path, *, contract: object = None, **environment: str) -> Checked:
        (tmp_path / "nothing").mkdir()
        words: list[str | Path] = ["--changes-in", tmp_path / "nothing", HOOKS / hook]
        if contract is not None:
            file = tmp_path / "contract.yaml"
            file.write_text(yaml.safe_dump(contract))
            words += ["--contract", file]
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        done = hotplate("hook", "check", "--json", "--timeout", 300, *words)
        assert done.returncode in (0, 1), done.stderr
        return Checked({each["name"]: each for each in json.loads(done.stdout)["lines"]})

    return check


@pytest.fixture(scope="session")
def salt_call(kept) -> str:
    """The path of a real salt-call, in an environment that is made once and then kept.

    It has the packages of the element's lock file and no others, so that a package missing from
    the lock shows here.
    """
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    locks = HOOKS.parent / "elements" / "heat-config-salt" / "heat-salt-lock"
    lists = (locks / "lock.txt", locks / "source.txt")

    def install(folder: Path) -> None:
        program = (str(folder / "venv" / "bin" / "python"), "-m", "pip", "install", "-q")
        words = ("--disable-pip-version-check", "--no-deps", "--require-hashes", "-r")
        reason = "Salt cannot be installed here"
        run_or_skip(reason, sys.executable, "-m", "venv", str(folder / "venv"))
        for each in lists:
            run_or_skip(reason, *program, *words, str(each))

    made_of = "".join(each.read_text() for each in lists)
    return str(kept(f"salt-{tag}", made_of, install) / "venv" / "bin" / "salt-call")
