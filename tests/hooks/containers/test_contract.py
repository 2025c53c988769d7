"""``hotplate hook check`` on the hooks for containers, with real ones."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.tool("podman")

#: The first process of a container has no handlers but its own.
STOPS = "trap exit TERM; "


def shell(text, **more):
    """Return an entry of docker-cmd whose container runs a line."""
    return {"a": {"image": "@image@", "detach": False, "command": ["sh", "-c", text], **more}}


DOCKER_CMD = {
    "tool": "docker",
    "configs": {
        "ok": shell("echo @word@"),
        "fails": shell("echo @word@ >&2; exit 3"),
        "large": shell(
            "echo @word@; x=$(printf %0500d 0); i=0; "
            "while [ $i -lt 3000 ]; do echo $x; i=$((i+1)); done"
        ),
        "binary": shell(r"printf '@word@ \377\376\n'"),
        "slow": shell(STOPS + "echo >/ready; sleep 600 & wait", volumes=["@ready@:/ready"]),
    },
}
SERVICE = {"image": "@image@", "network_mode": "host"}
WAIT = ["sh", "-c", STOPS + "sleep 600 & wait"]
DOCKER_COMPOSE = {
    "tool": "docker-compose",
    "configs": {
        "ok": {"a": {**SERVICE, "command": WAIT}},
        "fails": {"a": {"image": "localhost/@word@:none"}},
    },
}


@pytest.fixture
def check(tmp_path, hooks_dir, podman):
    """Check a hook against a contract, with the programs of a folder on PATH; return its lines."""

    def run(name, contract, folder):
        text = yaml.safe_dump(contract).replace("@image@", podman.image)
        (tmp_path / "contract.yaml").write_text(text)
        command = [sys.executable, "-m", "hotplate", "hook", "check", "--json", "--timeout", "300"]
        done = subprocess.run(
            [
                *command,
                *("--contract", tmp_path / "contract.yaml", "--changes-in", tmp_path / "nothing"),
                hooks_dir / f"{name}.py",
            ],
            env={"PATH": folder, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=1200,
        )
        assert done.returncode in (0, 1), done.stderr
        return {each["name"]: each for each in json.loads(done.stdout)["lines"]}

    (tmp_path / "nothing").mkdir()
    return run


def wrapper(path: Path, program: str, environment: dict[str, str]) -> None:
    """Write a program that calls another in an environment; the runner passes on only its own."""
    given = " ".join(f"{name}='{value}'" for name, value in environment.items() if name != "PATH")
    path.write_text(f'#!/bin/sh\nexec env {given} {program} "$@"\n')
    path.chmod(0o755)


def problems(lines):
    return {
        name: [each["reason"] for each in line["faults"]]
        for name, line in lines.items()
        if line["faults"]
    }


def not_tried(lines):
    return {name for name, line in lines.items() if line["state"] == "not tried"}


def test_docker_cmd_keeps_the_contract(check, podman, base_system, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    wrapper(tools / "docker", podman.program, podman.environment)
    lines = check("docker_cmd", DOCKER_CMD, f"{tools}:{base_system}")
    assert problems(lines) == {}
    assert not_tried(lines) == set()


def test_docker_compose_keeps_the_contract(check, docker_environment, base_system, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("docker", "docker-compose"):
        program = shutil.which(name)
        if program is None:
            pytest.skip(f"{name} is not installed")
        wrapper(tools / name, program, docker_environment)
    lines = check("docker_compose", DOCKER_COMPOSE, f"{tools}:{base_system}")
    assert problems(lines) == {}
    assert not_tried(lines) == {"large-output", "binary-output", "time-limit", "interruption"}
