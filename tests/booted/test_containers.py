"""Containers of both groups in a booted guest, with docker and with podman.

Every test run covers the hooks on the host (``tests/hooks/containers``), where podman serves both
command lines.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hotplate.events.log import EventLog
from hotplate.guest.shell import Shell
from hotplate.image.inspect import Image
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import load
from hotplate.testbed.testbed import Testbed
from tests.booted.run_settings import settings_of_this_run

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.boots,
    pytest.mark.builds,
    pytest.mark.root,
    pytest.mark.network,
    pytest.mark.long,
]

TEMPLATE = Path(__file__).parent / "templates" / "containers.yaml"
GROUPS = "script,docker-cmd,docker-compose"
SECONDS = 600.0

READ = """
for i in $(seq 60); do busybox wget -qO - http://127.0.0.1:8080/ && exit; sleep 1; done; exit 1
"""


def lines(shell: Shell, command: str) -> list[str]:
    """Return the command's output lines, sorted."""
    return sorted(shell.run(command, timeout=SECONDS).check().text.splitlines())


class Life:
    """The containers of a stack; *engine* is the program that runs them."""

    def __init__(self, stack: Stack, shell: Shell) -> None:
        self.stack = stack
        self.shell = shell

    def check(self, engine: str, compose_names: list[str]) -> None:
        """Check that all containers run as the template describes."""
        assert self.stack.outputs["codes"] == [0, 0, 0], self.stack.outputs
        assert self.stack.outputs["stdout"].endswith(
            f"inside: first line\nsecond line\nonce {engine}\n"
        )
        running = lines(self.shell, f"{engine} ps --format '{{{{.Names}}}}'")
        assert running == sorted(["web", *compose_names])
        assert lines(self.shell, READ) == [f"page {engine}"]
        (reader,) = [name for name in compose_names if "reader" in name]
        log = f"for i in $(seq 60); do {engine} logs {reader} | grep . && exit; sleep 1; done"
        assert lines(self.shell, log) == [f"page {engine}"]
        profile = f"{engine} exec web busybox cat /proc/1/attr/current"
        assert "(enforce)" in lines(self.shell, profile)[0]

    def remove(self, engine: str) -> None:
        """Update to configs without a container and check that the running ones go."""
        self.stack.update(parameters={"engine": engine, "running": False})
        assert self.stack.wait(seconds=SECONDS).status == "UPDATE_COMPLETE", self.stack
        assert lines(self.shell, f"{engine} ps --all --quiet") == []


def whole_life(image: Path, directory: Path, separator: str, engine: str) -> None:
    """Create, check and remove all containers in one boot."""
    names = [f"a-project{separator}{name}{separator}1" for name in ("page", "reader")]
    with Testbed(
        Image.open(image), settings=settings_of_this_run(), directory=directory, events=EventLog()
    ) as testbed:
        stack = Stack.create(testbed.cloud, load(TEMPLATE, parameters={"engine": engine}))
        assert stack.wait(seconds=SECONDS).status == "CREATE_COMPLETE", stack
        (server,) = testbed.servers
        life = Life(stack, server.shell())
        life.check(engine, names)
        life.remove(engine)


def test_containers_run_with_docker(images, tmp_path):
    """In bookworm, with compose 1.29.

    The container images are made in the guest, so that no registry is needed.
    """
    image = images.get("bookworm", "disk", GROUPS, "--no-cloud-init")
    whole_life(image, tmp_path / "run", "_", "docker")


def test_containers_run_with_podman(images, tmp_path):
    """In trixie, with compose 2, and without docker, which would bring what podman needs."""
    podman = {"DIB_HEAT_DOCKER_PACKAGE": "podman"}
    image = images.get("trixie", "partition", GROUPS, "--no-cloud-init", variables=podman)
    whole_life(image, tmp_path / "run", "-", "podman")
