"""A hostile guest, really booted: floods of its console, its ports and its network.

It is the tiny guest, which boots in seconds; ``tests/booted`` does the same with a whole image.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_guest
from growth import bounded
from tiny_machines import Made, attached

from hotplate.cloud.http import limits
from hotplate.cloud.http.addresses import Side
from hotplate.cloud.http.faults import Faults
from hotplate.cloud.http.gateway import Front
from hotplate.cloud.http.quota import Quota
from hotplate.cloud.http.serving import Serving
from hotplate.events.log import EventLog
from hotplate.machine import accelerator, wiring
from hotplate.machine.config import MachineConfig
from hotplate.machine.console import FLOOD_LINES
from hotplate.machine.qemu import QemuMachine
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

pytestmark = [pytest.mark.boots, pytest.mark.network, pytest.mark.tool("qemu-system-x86_64")]

Make = Callable[..., Made]


def floods(made: Made) -> list[str]:
    return [str(each.detail["fault"]) for each in made.events if each.kind == "flood"]


def test_endless_console_output_is_bounded(make: Make) -> None:
    bad, good = make(name="bad"), make(name="good")
    shells = [attached(made.machine) for made in (bad, good)]
    with bounded("console"):
        shells[0].run('yes "" >/dev/ttyS0 & true').check()
        retry(lambda _: "console-flood" in floods(bad), Deadline(240, "the verdict"))
        assert shells[1].run("echo fine").text == "fine"
    lines = [each for each in bad.events if each.kind == "line"]
    assert len(lines) < FLOOD_LINES
    assert floods(good) == []


def test_endless_shell_output_is_bounded(make: Make) -> None:
    shell = attached(make(name="bad").machine)
    # Output of the guest's shell goes to the port; tests/guest/test_hostile_replies.py has more.
    shell._channel.send(b"exec yes\n", Deadline(10, "the shell"))
    with bounded("shell port"), pytest.raises(DeadlineExceeded):
        shell.attach(Deadline(10, "the shell"))


def test_silent_connections_are_bounded(tiny: tiny_guest.TinyGuest, tmp_path: Path) -> None:
    events = EventLog()
    seen: list[str] = []

    def app(_environ: object, start_response: Callable[..., object]) -> list[bytes]:
        start_response("200 OK", [])
        return [b"fine"]

    with wiring.choose([80]) as link, contextlib.ExitStack() as owned:
        serving = Serving(events=EventLog(), threads=2, connections=limits.CONNECTIONS)
        owned.callback(serving.stop)
        front = Front(
            "metadata",
            app,
            side=Side.GUEST,
            server_id="bad",
            events=events,
            faults=Faults(),
            quota=Quota(lambda fault, _text: seen.append(fault)),
        )
        owned.callback(serving.add(link.listeners[80], front))
        config = MachineConfig(
            name="bad",
            uuid=str(uuid.uuid4()),
            kernel=tiny.kernel,
            initrd=tiny.initrd,
            append=tiny.append,
            memory_mib=192,
            cpus=1,
        )
        machine = owned.enter_context(
            QemuMachine(
                config,
                wiring=link,
                accelerator=accelerator.emulation("the tests shall run everywhere"),
                directory=tmp_path / "bad",
                events=events,
            )
        )
        machine.start()
        shell = attached(machine)
        before = len(list(Path("/proc/self/fd").iterdir()))
        with bounded("idle connections"):
            shell.run(
                "for i in $(seq 120); do sleep 300 | nc 169.254.169.254 80 & done "
                "</dev/null >/dev/null 2>&1; true",
                timeout=120,
            ).check()
            retry(lambda _: "connection-flood" in seen, Deadline(120, "the verdict"))
        assert len(list(Path("/proc/self/fd").iterdir())) <= before + limits.CONNECTIONS + 20
