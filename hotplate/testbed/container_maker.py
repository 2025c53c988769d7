"""Makes servers' machines as containers of systemd-nspawn."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from hotplate.cloud.http.addresses import PORTS
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.container.machine import LAYER, ContainerConfig, ContainerMachine, check_host
from hotplate.container.root import open_root
from hotplate.errors import HostError, MachineLostError, UsageError
from hotplate.events.log import EventLog
from hotplate.machine.cpu_models import is_model
from hotplate.machine.machine import Machine
from hotplate.machine.wiring import Alone, Cables, Wiring
from hotplate.network.dhcp import Subnet
from hotplate.network.segment import Segment
from hotplate.settings import Datasource, Settings
from hotplate.testbed.boot_images import BootImages
from hotplate.testbed.maker import Maker, Start, nocloud
from hotplate.testbed.segments import Segments
from hotplate.timing.deadline import GuestDeadline

#: The least size of the layer that takes a container's changes; it is sparse.
LAYER_BYTES = 4 << 30
SAVE_SECONDS = 60.0
#: The slot of the first interface in QEMU's machine "pc", behind the shell's port and the random
#: numbers; a guest there names it ens4.
FIRST_INTERFACE = 4
#: The line of a verdict on a container.
TOLD = (
    "machine: a container, which shares the host's kernel: nothing is said about the image's own "
    "kernel, initrd, boot loader, firmware, partitions and clock"
)
#: The network of a server that is on none of Neutron's: as QEMU's user-mode network has it.
ALONE = Subnet(IPv4Network("10.0.2.0/24"), IPv4Address("10.0.2.3"), gateway=IPv4Address("10.0.2.2"))
ALONE_ADDRESS, ALONE_MAC = IPv4Address("10.0.2.15"), "52:54:00:a9:fe:0f"
#: ds-identify and cloud-init's data source read the product's name in a container from the
#: environment of its first process, as LXD sets it (cloud-init: DataSourceOpenStack).
ENVIRONMENT = {Datasource.OPENSTACK: {"product_name": "OpenStack Nova"}}
#: The folders where cloud-init looks for a drive's files without a drive.
SEEDS = {
    Datasource.CONFIG_DRIVE: "/var/lib/cloud/seed/config_drive",
    Datasource.NOCLOUD: "/var/lib/cloud/seed/nocloud-net",
}


class ContainerMaker(Maker):
    """Makes containers, whose init is given the shell's socket.

    :param images: the images that the servers run.
    :param segments: the networks between servers; None isolates each server.
    :param directory: for the networks of isolated servers.
    """

    boots_restored = True

    def __init__(
        self,
        images: BootImages,
        *,
        settings: Settings,
        events: EventLog,
        segments: Segments | None,
        directory: Path,
    ) -> None:
        self.images = images
        self.settings = settings
        self.events = events
        self.segments = segments
        self.directory = directory
        self.facts = {"machine": TOLD.removeprefix("machine: ")}
        self.told = TOLD
        check_host()
        for name, value in (
            ("wiring", settings.wiring),
            ("firmware", settings.firmware),
            ("accelerator", settings.accelerator),
            ("arch", settings.arch),
        ):
            if value.value not in ("auto", platform.machine()):
                raise _refused(name, f'no {name}, and the {name} is set to "{value.value}"')
        # A level is the least that an emulated CPU has, as under KVM, where the host's own is used.
        if is_model(settings.cpu):
            raise _refused("cpu", f'the host\'s own CPU, and the cpu is set to "{settings.cpu}"')
        if settings.tpm:
            raise _refused("tpm", "no TPM of its own, and tpm is set to true")
        if settings.append:
            line = f'no kernel command line of its own, and append is set to "{settings.append}"'
            raise _refused("append", line)
        if settings.datasource not in (*ENVIRONMENT, *SEEDS):
            raise UsageError(
                f'a container cannot have the data source "{settings.datasource.value}": '
                "cloud-init finds it by the firmware or by a drive's label",
                hint="--machine qemu",
            )

    def wired(self, spec: ServerSpec, owned: ExitStack) -> Wiring:
        """See :meth:`Maker.wired`."""
        if self.segments is None or not spec.ports:
            return owned.enter_context(self._alone(spec))
        link = owned.enter_context(self.segments.wired(spec))
        if not isinstance(link, Cables):
            raise HostError(
                f"this host has no networks for containers: {link.reason}", hint="--machine qemu"
            )
        return link

    @contextlib.contextmanager
    def _alone(self, spec: ServerSpec) -> Iterator[Wiring]:
        # A spare server has the same id.
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{spec.id}-", dir=self.directory))
        network = Segment(spec.name, ALONE, directory=folder, services=PORTS)
        with ExitStack() as owned:
            owned.enter_context(network)
            # Nobody waits for its end; the port goes with it.
            owned.callback(network.close, wait=False)
            port = network.port(mac=ALONE_MAC, addresses=[ALONE_ADDRESS])
            yield owned.enter_context(Alone([port], reason="a network of its own"))

    def make(
        self, start: Start, directory: Path, *, wiring: Wiring, owned: ExitStack
    ) -> ContainerMachine:
        """See :meth:`Maker.make`."""
        image = start.image or self.images.of(start.spec.image)
        root = owned.enter_context(open_root(image, self.settings.cache))
        if start.state is not None:
            copy_sparse(start.state / LAYER, directory / LAYER)
        return ContainerMachine(
            ContainerConfig(
                name=directory.name,
                uuid=start.spec.id,
                root=root,
                nonce=start.nonce,
                memory_mib=self.settings.memory,
                layer_bytes=max(image.virtual_size, LAYER_BYTES),
                interfaces="ens" if root.predictable_names else "eth",
                first_interface=FIRST_INTERFACE if root.predictable_names else 0,
                environment=ENVIRONMENT.get(self.settings.datasource, {}),
                # A saved layer has them.
                seeds=self._seeds(start) if start.state is None else {},
                restored=start.state is not None,
            ),
            wiring=wiring,
            directory=directory,
            events=start.events or self.events,
            server_id=start.spec.id,
        )

    def has_disk(self, folder: Path) -> bool:
        """See :meth:`Maker.has_disk`."""
        return (folder / LAYER).exists()

    def save(self, machine: Machine, folder: Path) -> tuple[str, ...]:
        """See :meth:`Maker.save`; saves the changes to its root, without its processes."""
        # An orderly end, so that its programs have written everything.
        machine.shutdown(GuestDeadline(SAVE_SECONDS, f'"{machine.name}" to shut down'))
        copy_sparse(machine.directory / LAYER, folder / LAYER)
        return (LAYER,)

    # -- inside ----------------------------------------------------------------------------------

    def _seeds(self, start: Start) -> Mapping[str, Mapping[str, bytes]]:
        source = self.settings.datasource
        if source not in SEEDS:
            if not start.spec.config_drive:
                return {}
            source = Datasource.CONFIG_DRIVE
        tree = start.services.metadata_tree(start.spec.id)
        return {SEEDS[source]: nocloud(start.spec, tree) if source is Datasource.NOCLOUD else tree}


def _refused(option: str, has: str) -> UsageError:
    return UsageError(
        f"a container has {has}", hint=f"leave out --{option}, or take --machine qemu"
    )


def copy_sparse(source: Path, target: Path) -> None:
    """Copy a file, and leave its holes holes.

    :raises MachineLostError: when the source is gone.
    """
    done = subprocess.run(
        ["cp", "--sparse=always", "--reflink=auto", source, target], capture_output=True, text=True
    )
    if done.returncode:
        raise MachineLostError(f"a container's changes cannot be copied: {done.stderr.strip()}")
    target.chmod(0o600)
