"""Nova's power actions on a server's machine, with played machines."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_disk

from hotplate.errors import HostError, MachineLostError
from hotplate.events.kinds import MachineExit
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.settings import AcceleratorChoice, Settings
from hotplate.testbed.compute import LocalCompute
from hotplate.testbed.server import Server
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

ID = "4d0c1f0e-0000-4000-8000-000000000001"
pytestmark = pytest.mark.skipif(
    shutil.which("qemu-system-x86_64") is None, reason="needs qemu-system-x86_64"
)


class PlayedMachine:
    """A machine that records calls, and reports its ends as a real one does."""

    def __init__(self, events: EventLog) -> None:
        self.events = events
        self.calls: list[str] = []
        self.console = SimpleNamespace(text=lambda: "login:")
        self.obeys = True
        self.may_shut_down = threading.Event()
        self.may_shut_down.set()
        self.starts = threading.Event()
        self.may_start = threading.Event()
        self.may_start.set()
        self.broken = False
        #: Whether its guest shuts down only when the power is cut.
        self.dies = False

    def kill(self) -> None:
        if self.calls[-1:] != ["shutdown"] or not self.obeys:
            self.events.add(MachineExit(-9, "power-cut", ""), server=ID)
        self.calls.append("kill")
        if self.dies:
            self.may_shut_down.set()

    def start(self) -> None:
        if self.broken:
            raise HostError("QEMU could not start")
        self.starts.set()
        self.may_start.wait(60)
        self.calls.append("start")

    def shutdown(self, deadline: Deadline) -> None:
        self.may_shut_down.wait(60)
        self.calls.append("shutdown")
        if not self.obeys:
            raise DeadlineExceeded("it did not")
        self.events.add(MachineExit(0, "guest-shutdown", ""), server=ID)

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")


@pytest.fixture
def compute(tmp_path: Any) -> LocalCompute:
    return LocalCompute(
        Image.open(tiny_disk.make(tmp_path / "tiny.raw")),
        settings=Settings(accelerator=AcceleratorChoice.TCG, cache=tmp_path),
        directory=tmp_path,
        events=EventLog(),
    )


@pytest.fixture
def machine(compute: LocalCompute) -> Iterator[PlayedMachine]:
    made = PlayedMachine(compute.events)
    spec: Any = SimpleNamespace(id=ID, name="web")
    owned = ExitStack()
    owned.callback(made.kill)
    compute.servers[ID] = Server(spec, made, nonce="n", owned=owned)  # type: ignore[arg-type]
    compute._state[ID] = ("ACTIVE", "")
    yield made
    made.may_shut_down.set()
    compute.close()


def test_server_deleted_while_it_is_switched_on_does_not_run_on(
    compute: LocalCompute, machine: PlayedMachine
) -> None:
    machine.may_start.clear()
    start = threading.Thread(target=compute.start, args=(ID,))
    start.start()
    assert machine.starts.wait(60)
    deletion = threading.Thread(target=compute.delete, args=(ID,))
    deletion.start()
    retry(lambda _: ID not in compute.servers, Deadline(60, "the deletion"), every=0.01)
    machine.may_start.set()
    for thread in (start, deletion):
        thread.join(60)
    assert machine.calls == ["start", "kill"]


def test_deleted_server_is_not_switched_on(compute: LocalCompute, machine: PlayedMachine) -> None:
    server = compute.servers[ID]
    compute.delete(ID)
    with pytest.raises(MachineLostError, match="there is no server"):
        compute._turn_on(server)
    assert machine.calls == ["kill"]


def test_server_is_paused_and_unpaused(compute: LocalCompute, machine: PlayedMachine) -> None:
    compute.pause(ID)
    assert compute.status(ID) == ("PAUSED", "")
    compute.unpause(ID)
    assert compute.status(ID) == ("ACTIVE", "")
    assert machine.calls == ["pause", "resume"]


def test_hard_reboot_cuts_the_power(compute: LocalCompute, machine: PlayedMachine) -> None:
    compute.hard_reboot(ID)
    assert machine.calls == ["kill", "start"]
    assert compute.status(ID) == ("ACTIVE", "")
    assert compute.servers[ID].was_rebooted


def until(compute: LocalCompute, word: str) -> None:
    retry(lambda _: compute.status(ID)[0] == word, Deadline(60, word))


def test_soft_reboot_lets_the_system_shut_down(
    compute: LocalCompute, machine: PlayedMachine
) -> None:
    machine.may_shut_down.clear()
    compute.reboot(ID)
    assert compute.status(ID) == ("REBOOT", "")
    machine.may_shut_down.set()
    until(compute, "ACTIVE")
    assert machine.calls == ["shutdown", "kill", "start"]


def test_system_that_does_not_shut_down_is_powered_off(
    compute: LocalCompute, machine: PlayedMachine
) -> None:
    machine.obeys = False
    compute.reboot(ID)
    until(compute, "ACTIVE")
    assert machine.calls == ["shutdown", "kill", "start"]


def test_hard_reboot_ends_a_soft_one(compute: LocalCompute, machine: PlayedMachine) -> None:
    """Nova allows it, for a soft reboot that the guest ignores."""
    machine.may_shut_down.clear()
    machine.dies = True
    compute.reboot(ID)
    compute.hard_reboot(ID)
    assert compute.status(ID) == ("ACTIVE", "")
    assert machine.calls == ["kill", "shutdown", "kill", "start"]


def test_server_deleted_during_a_reboot_stays_off(
    compute: LocalCompute, machine: PlayedMachine
) -> None:
    machine.may_shut_down.clear()
    compute.reboot(ID)
    compute.delete(ID)
    machine.may_shut_down.set()
    compute.close()
    assert machine.calls == ["kill", "shutdown"]


def test_server_that_fails_to_start_after_a_reboot_is_error(
    compute: LocalCompute, machine: PlayedMachine
) -> None:
    machine.broken = True
    with pytest.raises(HostError):
        compute.hard_reboot(ID)
    assert compute.status(ID) == ("ERROR", "QEMU could not start")
    compute._state[ID] = ("ACTIVE", "")
    compute.reboot(ID)
    until(compute, "ERROR")


def test_lost_machine_during_a_reboot_is_an_error(
    compute: LocalCompute, machine: PlayedMachine
) -> None:
    machine.may_shut_down.clear()
    compute.reboot(ID)
    compute.events.add(MachineExit(1, "lost", "gone"), server=ID)
    assert compute.status(ID) == ("ERROR", "gone")


def test_console_is_returned(compute: LocalCompute, machine: PlayedMachine) -> None:
    assert compute.console(ID) == "login:"
    assert compute.console("one that waits for memory") == ""


def test_unknown_server_is_refused(compute: LocalCompute) -> None:
    with pytest.raises(MachineLostError):
        compute.pause("nobody")
