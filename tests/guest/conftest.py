"""A tiny guest with every connection: shell channel, ssh."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import paramiko
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "machine"))

import tiny_guest

from hotplate.events.log import EventLog
from hotplate.guest.base import Guest
from hotplate.guest.shell import Shell
from hotplate.guest.ssh import Ssh
from hotplate.machine import accelerator, wiring
from hotplate.machine.config import MachineConfig
from hotplate.machine.qemu import QemuMachine
from hotplate.timing.deadline import Deadline

BOOT_SECONDS = 90


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QemuMachine]:
    """One machine for all tests of connections."""
    tiny = tiny_guest.make(ways_in=True)
    with wiring.choose([80]) as link:
        config = MachineConfig(
            name="tiny",
            uuid=str(uuid.uuid4()),
            kernel=tiny.kernel,
            initrd=tiny.initrd,
            append=tiny.append,
            memory_mib=320,
            cpus=1,
        )
        with QemuMachine(
            config,
            wiring=link,
            accelerator=accelerator.emulation("the tests shall run everywhere"),
            directory=tmp_path_factory.mktemp("tiny"),
            events=EventLog(),
        ) as machine:
            machine.start()
            yield machine


@pytest.fixture
def shell(running: QemuMachine) -> Shell:
    way = Shell(running.shell_channel, nonce=tiny_guest.NONCE)
    way.attach(Deadline(BOOT_SECONDS, "the shell"))
    return way


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
