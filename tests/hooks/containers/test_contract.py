"""``hotplate hook check`` on the hooks for containers, with real ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import programs
import pytest
from own_podman import IMAGE

pytestmark = pytest.mark.tool("podman")

#: The first process of a container has no handlers but its own.
STOPS = "trap exit TERM; "


def shell(text, **more):
    """Return an entry of docker-cmd whose container runs a line."""
    return {"a": {"image": IMAGE, "detach": False, "command": ["sh", "-c", text], **more}}


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
SERVICE = {"image": IMAGE, "network_mode": "host"}
WAIT = ["sh", "-c", STOPS + "sleep 600 & wait"]
DOCKER_COMPOSE = {
    "tool": "docker-compose",
    "configs": {
        "ok": {"a": {**SERVICE, "command": WAIT}},
        "fails": {"a": {"image": "localhost/@word@:none"}},
    },
}


def wrapper(path: Path, program: str, environment: dict[str, str]) -> None:
    """Write a program that calls another in an environment; the runner passes on only its own."""
    given = " ".join(f"{name}='{value}'" for name, value in environment.items() if name != "PATH")
    programs.program(path, f'exec env {given} {program} "$@"')


def test_docker_cmd_keeps_the_contract(check_hook, podman, base_system, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    wrapper(tools / "docker", podman.program, podman.environment)
    checked = check_hook("docker_cmd.py", contract=DOCKER_CMD, PATH=f"{tools}:{base_system}")
    assert checked.problems == {}
    assert checked.not_tried == {"inputs", "unicode"}


def test_docker_compose_keeps_the_contract(check_hook, docker_environment, base_system, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("docker", "docker-compose"):
        program = shutil.which(name)
        if program is None:
            pytest.skip(f"{name} is not installed")
        wrapper(tools / name, program, docker_environment)
    path = f"{tools}:{base_system}"
    checked = check_hook("docker_compose.py", contract=DOCKER_COMPOSE, PATH=path)
    assert checked.problems == {}
    never = {"large-output", "binary-output", "time-limit", "interruption"}
    assert checked.not_tried == never | {"inputs", "unicode"}
