"""The monitor's client, against a real QEMU without a guest."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from hotplate.errors import MachineLostError
from hotplate.events.log import EventLog
from hotplate.machine.qmp import Qmp, QmpError
from hotplate.timing.deadline import HostTooSlow

pytestmark = pytest.mark.tool("qemu-system-x86_64")

Monitored = tuple[Qmp, list[tuple[str, dict[str, Any]]], subprocess.Popen[bytes]]


@pytest.fixture
def monitored() -> Iterator[Monitored]:
    ours, theirs = socket.socketpair()
    events: list[tuple[str, dict[str, Any]]] = []
    with theirs:
        process = subprocess.Popen(
            [
                *("qemu-system-x86_64", "-nodefaults", "-display", "none", "-machine", "none"),
                *("-S", "-chardev", f"socket,id=qmp,fd={theirs.fileno()}"),
                *("-mon", "chardev=qmp,mode=control"),
            ],
            pass_fds=[theirs.fileno()],
        )
    qmp = Qmp(ours, events=EventLog(), on_event=lambda name, data: events.append((name, data)))
    try:
        yield qmp, events, process
    finally:
        process.kill()
        process.wait()
        qmp.close()


def test_commands_return_answers_and_refusals(monitored: Monitored) -> None:
    qmp, events, process = monitored
    qmp.negotiate(seconds=30)
    assert qmp.execute("query-status")["status"] == "prelaunch"
    with pytest.raises(QmpError, match='refused the command "no-such"') as caught:
        qmp.execute("no-such")
    assert caught.value.kind == "CommandNotFound"
    with pytest.raises(QmpError, match="Parameter"):
        qmp.execute("screendump", wrong_name=1)
    qmp.execute("quit")
    assert process.wait(60) == 0
    qmp.drain()
    assert ("SHUTDOWN", {"guest": False, "reason": "host-qmp-quit"}) in events


def test_end_of_qemu_raises_machine_lost(monitored: Monitored) -> None:
    qmp, _, process = monitored
    qmp.negotiate(seconds=30)
    process.kill()
    process.wait()
    for _ in range(2):
        with pytest.raises(MachineLostError, match="the machine is gone"):
            qmp.execute("query-status")


def test_missing_answer_raises_at_the_deadline() -> None:
    ours, theirs = socket.socketpair()
    qmp = Qmp(ours, events=EventLog(), on_event=lambda *_: None)
    with theirs:
        with pytest.raises(HostTooSlow, match="QEMU's greeting"):
            qmp.negotiate(seconds=0.2)
        # A late answer is not taken for that of another command.
        with pytest.raises(MachineLostError):
            qmp.execute("query-status")
    qmp.close()
