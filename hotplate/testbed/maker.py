"""The interface of the makers of machines, one for each kind, and of a server to start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hotplate.cloud.nova.compute import GuestServices, ServerSpec
from hotplate.container.machine import LAYER
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.machine.machine import Machine
from hotplate.machine.wiring import Wiring

#: In a server's folder: the disk that it writes to, and its configuration drive.
DISK = "disk.qcow2"
DRIVE = "config-drive.img"
#: Nova's metadata of a server, by which it has a disk of so many GiB, as a flavor gives it;
#: without it the disk has the image's size.
DISK_KEY = "hotplate_disk"
#: The files of all kinds of machine that go with a server that passed.
DISKS = (DISK, DRIVE, LAYER)


@dataclass(frozen=True)
class Start:
    """A server to start.

    :param services: the cloud's, for its guest.
    :param nonce: proves that the guest that answers is the one started.
    :param image: the image that a new server boots; None for a server that has a disk.
    :param folder: of a server that existed before; None for a new one.
    :param state: the folder of a saved state to continue from; None for a server that is booted.
    :param off: leave it switched off.
    :param events: the log of a server that nobody answers yet; None for that of the run.
    """

    spec: ServerSpec
    services: GuestServices
    nonce: str
    image: Image | None = None
    folder: Path | None = None
    state: Path | None = None
    off: bool = False
    events: EventLog | None = None


class Maker(Protocol):
    """Makes the machines of servers.

    :ivar facts: about all of its machines, for the reader of a verdict.
    :ivar told: the same as one line, for the beginning of a run.
    :ivar boots_restored: whether a machine boots when it continues from a saved state.
    """

    facts: dict[str, str]
    told: str
    boots_restored: bool = False

    def wired(self, spec: ServerSpec, owned: ExitStack) -> Wiring:
        """Connect a server: to the networks of its ports, or to the cloud alone.

        :param owned: disconnects it when it is closed.
        """

    def vendor_data(self, nonce: str) -> str:
        """Return the vendor data that make its guest start the shell; "" when it needs none."""
        del nonce
        return ""

    def make(self, start: Start, directory: Path, *, wiring: Wiring, owned: ExitStack) -> Machine:
        """Return a server's machine, switched off.

        :param directory: the server's folder.
        :param owned: gets whatever has to be closed after the machine.
        """

    def has_disk(self, folder: Path) -> bool:
        """Return whether a server's folder still has the disk that it wrote to."""

    def save(self, machine: Machine, folder: Path) -> tuple[str, ...]:
        """Write the state of a machine into a folder, and switch it off; return the files' names.

        Of machines that a compute service made with ``saves``.
        """

    def more_mib(self, state: Path) -> int:
        """Return the MiB of memory that a machine takes of the host to continue from a state.

        In addition to that of a machine that is booted.

        :raises MachineLostError: when the state is damaged.
        """
        del state
        return 0

    def close(self) -> None:
        """Release what the machines have had in common; they are all off."""
        return

    def turn_on(self, machine: Machine, start: Start) -> None:
        """Switch a new server's machine on."""
        del start
        machine.start()


def nocloud(spec: ServerSpec, tree: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a NoCloud drive's content, made of a config drive's tree (cloud-init: NoCloud).

    Each data source of cloud-init takes keys from "public-keys" (``get_public_ssh_keys()``).
    """
    vendor = json.loads(tree.get("openstack/latest/vendor_data.json", b"{}"))
    meta = {"instance-id": spec.id, "local-hostname": spec.name}
    return {
        "meta-data": json.dumps({**meta, "public-keys": [*spec.public_keys.values()]}).encode(),
        "user-data": spec.user_data,
        "vendor-data": str(vendor.get("cloud-init", "")).encode(),
    }
