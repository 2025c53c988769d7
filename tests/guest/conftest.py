"""A tiny guest with every connection: shell channel, ssh."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "machine"))

import tiny_guest
from tiny_machines import BOOT_SECONDS, attached, machines

from hotplate.guest.base import Guest
from hotplate.guest.shell import Shell
from hotplate.guest.ssh import Ssh
from hotplate.machine.qemu import QemuMachine
from hotplate.timing.deadline import Deadline


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QemuMachine]:
    """One machine for all tests of connections."""
    tiny = tiny_guest.make(ways_in=True)
    with machines(tiny, tmp_path_factory.mktemp("tiny")) as make:
        yield make(memory_mib=320).machine


@pytest.fixture
def shell(running: QemuMachine) -> Shell:
    return attached(running)


@pytest.fixture(scope="session")
def key() -> paramiko.PKey:
    return paramiko.ECDSAKey.generate()


@pytest.fixture
def ssh(running: QemuMachine, shell: Shell, key: paramiko.PKey) -> Iterator[Ssh]:
    shell.copy_in(
        f"{key.get_name()} {key.get_base64()}\n".encode(), "/root/.ssh/authorized_keys", mode=0o600
    )
    way = Ssh(lambda: running.wiring.connect(22), keys=[key])
    way.attach(Deadline(BOOT_SECONDS, "ssh"))
    yield way
    way.close()


@pytest.fixture(params=["shell", "ssh"])
def guest(request: pytest.FixtureRequest) -> Guest:
    """Each connection, by the same protocol."""
    way: Guest = request.getfixturevalue(request.param)
    return way
