"""Makes servers' machines under QEMU: an overlay of the image, drives, firmware, wiring."""

from __future__ import annotations

import re
import shutil
from contextlib import ExitStack
from pathlib import Path

from hotplate.cloud.http.addresses import PORTS
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.errors import UsageError
from hotplate.events.log import EventLog
from hotplate.guest import shell
from hotplate.host_tools import find_tool
from hotplate.image import config_drive, qcow2
from hotplate.image.inspect import Image
from hotplate.image.overlay import make_overlay
from hotplate.inspection.cpu_level import cpu_need
from hotplate.machine import accelerator, cpu_models, wiring
from hotplate.machine.accelerator import HOST_CPU, Accelerator
from hotplate.machine.config import (
    ARCHITECTURES,
    OPENSTACK_SMBIOS,
    Firmware,
    MachineConfig,
    uefi_files,
)
from hotplate.machine.machine import Machine
from hotplate.machine.qemu import QemuMachine
from hotplate.machine.snapshot import GuestMemory
from hotplate.machine.wiring import Wiring
from hotplate.settings import Arch, Datasource, FirmwareChoice, Settings, WiringChoice
from hotplate.testbed.boot_images import BootImages
from hotplate.testbed.maker import DISK, DISK_KEY, DRIVE, Maker, Start, nocloud
from hotplate.testbed.segments import Segments

#: The firmware's strings by which cloud-init's ds-identify finds the data source; other data
#: sources are found by the label of their drive.
SMBIOS = {
    Datasource.OPENSTACK: OPENSTACK_SMBIOS,
    # Amazon's own strings make cloud-init insist on IMDSv2 tokens, which Nova lacks; this vendor's
    # make it use the EC2 tree as Nova serves it (cloud-init's DataSourceEc2).
    Datasource.EC2: {"manufacturer": "e24cloud"},
}


class QemuMaker(Maker):
    """Makes machines under QEMU.

    :param images: the images that the servers boot.
    :param segments: the networks between servers; None isolates each server.
    :param saves: whether the machines' states are going to be saved.
    """

    def __init__(
        self,
        images: BootImages,
        image: Image,
        *,
        settings: Settings,
        events: EventLog,
        segments: Segments | None,
        saves: bool,
    ) -> None:
        self.images = images
        self.settings = settings
        self.events = events
        self.segments = segments
        self.arch = arch_of(image, settings)
        self.accelerator = accelerator.choose(
            settings.accelerator.value, arch=self.arch, cache=settings.cache
        )
        chosen = self.accelerator
        self.facts = {"accelerator": f"{chosen.name} ({chosen.reason})"}
        self.told = f"accelerator: {chosen.name}, because {chosen.reason}"
        cpu, reason = cpu_of(image, settings, chosen)
        if cpu != chosen.cpu:
            self.told += f"; CPU: {cpu}, because {reason}"
        # Refused here, before anything is started.
        if (firmware := self._firmware(image)) is not Firmware.BIOS:
            uefi_files(self.arch, firmware)
        if settings.tpm:
            find_tool("swtpm")
        self._saves = saves
        # The memory of each saved state is read once, and shared by all machines that continue it.
        self._lent: dict[Path, GuestMemory] = {}

    def wired(self, spec: ServerSpec, owned: ExitStack) -> Wiring:
        """See :meth:`Maker.wired`."""
        if self.segments is not None and spec.ports:
            return owned.enter_context(self.segments.wired(spec))
        wanted = self.settings.wiring
        name = "" if wanted is WiringChoice.AUTO else wanted.value
        return owned.enter_context(wiring.choose(PORTS, wanted=name))

    def vendor_data(self, nonce: str) -> str:
        """See :meth:`Maker.vendor_data`."""
        return shell.vendor_data(nonce)

    def make(
        self, start: Start, directory: Path, *, wiring: Wiring, owned: ExitStack
    ) -> QemuMachine:
        """See :meth:`Maker.make`."""
        machine = QemuMachine(
            self._config(start, directory),
            wiring=wiring,
            accelerator=self.accelerator,
            directory=directory,
            events=start.events or self.events,
            server_id=start.spec.id,
            memory=(
                owned.enter_context(GuestMemory.empty(self.settings.memory))
                if self._saves
                else self._memory_of(start.state)
            ),
        )
        machine.write_script()
        return machine

    def has_disk(self, folder: Path) -> bool:
        """See :meth:`Maker.has_disk`."""
        return (folder / DISK).exists()

    def turn_on(self, machine: Machine, start: Start) -> None:
        """See :meth:`Maker.turn_on`."""
        assert isinstance(machine, QemuMachine)
        machine.start(incoming=start.state / "devices" if start.state is not None else None)

    def save(self, machine: Machine, folder: Path) -> tuple[str, ...]:
        """See :meth:`Maker.save`."""
        assert isinstance(machine, QemuMachine)
        # It stops the guest: memory and disk stay as they are from here on.
        machine.save_state(folder / "devices")
        if machine.memory is not None:
            machine.memory.save(folder / "memory")
        # The disk must be of the same instant as the memory.
        machine.kill()
        shutil.copyfile(machine.directory / DISK, folder / DISK)
        return ("memory", "devices", DISK)

    def more_mib(self, state: Path) -> int:
        """See :meth:`Maker.more_mib`."""
        lent = self._memory_of(state)
        return lent.used_mib if lent is not None else 0

    def close(self) -> None:
        """See :meth:`Maker.close`."""
        while self._lent:
            self._lent.popitem()[1].close()

    # -- inside ----------------------------------------------------------------------------------

    def _memory_of(self, state: Path | None) -> GuestMemory | None:
        if state is not None and state not in self._lent:
            self._lent[state] = GuestMemory.load(state / "memory")
        return self._lent[state] if state is not None else None

    def _disk(self, start: Start, directory: Path) -> Path:
        if start.state is not None:
            return make_overlay(start.state / DISK, "qcow2", directory / DISK)
        if start.image is None:
            return directory / DISK
        return start.image.overlay(directory, gib=disk_gib(start.spec, start.image))

    def _config(self, start: Start, directory: Path) -> MachineConfig:
        spec, disk = start.spec, self._disk(start, directory)
        image = self.images.of(spec.image)
        # Those of a testbed whose usual machine is a container were opened without.
        image.check_boots()
        append = ""
        if image.kernel is not None:
            console = ARCHITECTURES[self.arch].console
            # The last console= becomes /dev/console, to which init writes.
            append = f"root=/dev/vda ro console=tty0 console={console},115200"
            append = f"{append} {self.settings.append}".rstrip()
        source = self.settings.datasource
        drive = None
        if source is not Datasource.OPENSTACK and source is not Datasource.EC2:
            drive = self._drive(start, directory, source)
        elif spec.config_drive:
            drive = self._drive(start, directory, Datasource.CONFIG_DRIVE)
        cpu, cpu_reason = cpu_of(image, self.settings, self.accelerator)
        return MachineConfig(
            name=directory.name,
            uuid=spec.id,
            disk=disk,
            # The overlay's own path; the image's names were checked when it was opened.
            backing=tuple(
                (link.path, link.format) for link in qcow2.chain(disk, allow_backing=True)[1:]
            ),
            kernel=image.kernel,
            initrd=image.initrd,
            append=append,
            firmware=self._firmware(image),
            arch=self.arch,
            memory_mib=self.settings.memory,
            cpus=self.settings.cpus or self.accelerator.cpus,
            cpu=cpu,
            cpu_reason=cpu_reason,
            config_drive=drive,
            smbios=SMBIOS.get(source, {}),
            tpm=self.settings.tpm,
            display=self.settings.display,
            # A new generation id at each start: a guest that was restored seeds its random
            # numbers anew.  QEMU has it for PCs only.
            extra=("-device", "vmgenid,guid=auto") if self.arch == "x86_64" else (),
        )

    def _firmware(self, image: Image) -> Firmware:
        wanted = self.settings.firmware
        if wanted is FirmwareChoice.AUTO:
            # On other processors only UEFI passes SMBIOS to the guest.
            bios = self.arch == "x86_64" and image.bios_bootable
            return Firmware.BIOS if bios else Firmware.UEFI
        if wanted is FirmwareChoice.SECURE_BOOT and image.kernel is not None:
            # Without shim, OVMF starts such a kernel although no key of its own has signed it.
            raise UsageError(
                f'the kernel of "{image.path}" is beside it, and is started without a check of its '
                "signature",
                hint="--firmware secure-boot is for whole disks: hotplate build --secure-boot",
            )
        return Firmware(wanted.value)

    def _drive(self, start: Start, directory: Path, source: Datasource) -> Path:
        path = directory / DRIVE
        path.unlink(missing_ok=True)
        # cloud-init finds a drive by the label of its file system.
        tree, label = start.services.metadata_tree(start.spec.id), "config-2"
        if source is Datasource.NOCLOUD:
            tree, label = nocloud(start.spec, tree), "cidata"
        kind = "vfat" if source is Datasource.CONFIG_DRIVE_VFAT else "iso9660"
        config_drive.make(tree, path, fs=kind, label=label)
        return path


def disk_gib(spec: ServerSpec, image: Image) -> int:
    """Return the GiB of a server's disk, 0 for the image's size.

    :raises UsageError: when its metadata name no size, or one that is smaller than the image.
    """
    named = spec.metadata.get(DISK_KEY, "")
    if named and not (re.fullmatch("[0-9]{1,6}", named) and int(named) << 30 >= image.virtual_size):
        raise UsageError(
            f'the metadata "{DISK_KEY}" of the server "{spec.name}" is "{named}"; expected GiB, at '
            f"least the {image.virtual_size / 2**30:.1f} of the image"
        )
    return int(named or 0)


def arch_of(image: Image, settings: Settings) -> str:
    """Return the processor that runs an image, by QEMU's name."""
    return image.arch if settings.arch is Arch.AUTO else settings.arch.value


def cpu_of(image: Image, settings: Settings, chosen: Accelerator) -> tuple[str, str]:
    """Return the CPU model of an image's guests, and the reason for it, worded after "because".

    :param chosen: the accelerator.
    :raises UsageError: when the settings name a CPU that guests cannot have.
    """
    arch = arch_of(image, settings)
    row = ARCHITECTURES[arch]
    cpu_models.check(
        settings.cpu,
        arch=arch,
        machine=row.machines[Firmware.UEFI],
        program=find_tool(row.program),
        accelerator=chosen.options,
    )
    if cpu_models.is_model(settings.cpu):
        return settings.cpu, "the settings name it"
    # KVM's guests have the best CPU of this host already.
    if chosen.cpu == HOST_CPU:
        return chosen.cpu, chosen.reason
    need = cpu_need(image, **settings.reading)
    model = cpu_models.model_of([need.level, settings.cpu], arch=arch)
    by_need = model == cpu_models.model_of([need.level], arch=arch)
    return model, need.reason if by_need else f"it has {settings.cpu}"
