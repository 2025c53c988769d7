"""What a maker of machines gets and gives: one maker for each kind of machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hotplate.cloud.nova.compute import GuestServices, ServerSpec
from hotplate.image.inspect import Image
from hotplate.machine.machine import Machine
from hotplate.machine.snapshot import GuestMemory
from hotplate.machine.wiring import Wiring

#: In a server's folder: the disk that it writes to, and its configuration drive.
DISK = "disk.qcow2"
DRIVE = "config-drive.img"


@dataclass(frozen=True)
class Start:
    """A server to start.

    :param services: the cloud's, for its guest.
    :param nonce: proves that the guest that answers is the one started.
    :param image: the image that a new server boots; None for a server that has a disk.
    :param disk: makes its disk in its folder; None for an overlay of the image, or the disk that is
        in its folder.
    :param folder: of a server that existed before; None for a new one.
    :param memory: the memory to continue from; None for a server that is booted.
    :param devices: the state of its devices to continue from.
    :param off: leave it switched off.
    """

    spec: ServerSpec
    services: GuestServices
    nonce: str
    image: Image | None = None
    disk: Callable[[Path], Path] | None = None
    folder: Path | None = None
    memory: GuestMemory | None = None
    devices: Path | None = None
    off: bool = False


class Maker(Protocol):
    """Makes the machines of servers.

    :ivar facts: about all of its machines, for the reader of a verdict.
    :ivar told: the same as one line, for the beginning of a run.
    """

    facts: dict[str, str]
    told: str

    def wired(self, spec: ServerSpec, owned: ExitStack) -> Wiring:
        """Connect a server: to the networks of its ports, or to the cloud alone.

        :param owned: disconnects it when it is closed.
        """

    def vendor_data(self, nonce: str) -> str:
        """Return the vendor data that make its guest start the shell; "" when it needs none."""

    def make(self, start: Start, directory: Path, *, wiring: Wiring, owned: ExitStack) -> Machine:
        """Return a server's machine, switched off.

        :param directory: the server's folder.
        :param owned: gets whatever has to be closed after the machine.
        """

    def has_disk(self, folder: Path) -> bool:
        """Return whether a server's folder still has the disk that it wrote to."""

    def turn_on(self, machine: Machine, start: Start) -> None:
        """Switch a new server's machine on."""
