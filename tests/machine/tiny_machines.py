"""Machines of the tiny guest, and their answers."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_guest

from hotplate.events.log import EventLog
from hotplate.guest.shell import Shell
from hotplate.machine import accelerator, wiring
from hotplate.machine.config import MachineConfig
from hotplate.machine.qemu import QemuMachine
from hotplate.machine.snapshot import GuestMemory
from hotplate.timing.deadline import Deadline

BOOT_SECONDS = 90
PORTS = (80, 8000)


def attached(machine: QemuMachine, seconds: float = BOOT_SECONDS) -> Shell:
    """Return a shell in the tiny guest, once it answers."""
    shell = Shell(machine.shell_channel, nonce=tiny_guest.NONCE)
    shell.attach(Deadline(seconds, "the tiny guest's shell"))
    return shell


class Answerer:
    """Answers every connection on a wiring's listeners with the port and a name of its own."""

    def __init__(self, link: wiring.Wiring, name: str) -> None:
        self.name = name
        self.taken: list[int] = []
        for port, listener in link.listeners.items():
            threading.Thread(target=self._serve, args=(port, listener), daemon=True).start()

    def _serve(self, port: int, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    self.taken.append(port)
                    connection.recv(4096)
                    connection.sendall(f"{self.name} {port}\n".encode())


@dataclass
class Made:
    """A machine from the factory fixture."""

    machine: QemuMachine
    wiring: wiring.Wiring
    events: EventLog
    answerer: Answerer


@contextlib.contextmanager
def machines(tiny: tiny_guest.TinyGuest, place: Path) -> Iterator[Callable[..., Made]]:
    """Make machines of the tiny guest below a directory; options go to the configuration."""
    with contextlib.ExitStack() as stack:

        def factory(
            *,
            wanted: str = "",
            link: wiring.Wiring | None = None,
            name: str = "tiny",
            directory: Path | None = None,
            start: bool = True,
            memory: GuestMemory | None = None,
            **options: Any,
        ) -> Made:
            events = EventLog()
            link = stack.enter_context(link or wiring.choose(PORTS, wanted=wanted))
            settings: dict[str, Any] = {
                "name": name,
                "uuid": str(uuid.uuid4()),
                "kernel": tiny.kernel,
                "initrd": tiny.initrd,
                "append": tiny.append,
                "memory_mib": 192,
                # Two emulated processors sometimes lock each other up on a busy host.
                "cpus": 1,
            } | options
            machine = QemuMachine(
                MachineConfig(**settings),
                wiring=link,
                accelerator=accelerator.emulation(
                    "the tests shall run everywhere", arch=settings.get("arch", "x86_64")
                ),
                directory=directory or place / name,
                events=events,
                server_id=name,
                memory=memory,
            )
            stack.enter_context(machine)
            answerer = Answerer(link, name)
            if start:
                machine.start()
            return Made(machine, link, events, answerer)

        yield factory


def ask(shell: Shell, address: str, port: int, *, seconds: int = 4) -> str:
    """Return the answer that the guest gets at an address; "" when it gets none."""
    return shell.run(f"echo ask | timeout {seconds} nc {address} {port}").text
