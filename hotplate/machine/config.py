"""Configuration of a virtual machine, and the QEMU command line made from it.

Source of the options: qemu(1) of QEMU 7.2 and later.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from hotplate.errors import HostError
from hotplate.machine.files import HandedFiles, backing_options

#: The virtio port on which the guest may start a root shell; see :mod:`hotplate.guest.shell`.
SHELL_PORT = "org.hotplate.shell"


#: Denials of QEMU's seccomp filter (qemu(1), ``-sandbox``): all that exist.
SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"

#: The same for a wiring that starts programs. QEMU begins each of them with setsid(2), which
#: ``elevateprivileges`` would deny; ``no_new_privs`` still keeps programs from gaining rights.
SANDBOX_THAT_SPAWNS = "on,obsolete=deny,resourcecontrol=deny"

#: cloud-init's ``ds-identify`` and its OpenStack data source detect OpenStack by these.
OPENSTACK_SMBIOS: Mapping[str, str] = {
    "manufacturer": "OpenStack Foundation",
    "product": "OpenStack Nova",
}


class Firmware(enum.Enum):
    """The firmware that starts the machine."""

    BIOS = "bios"
    UEFI = "uefi"
    SECURE_BOOT = "secure-boot"


@dataclass(frozen=True)
class Architecture:
    """A row of :data:`ARCHITECTURES`.

    :param machines: QEMU's machine type by firmware.
    :param console: the kernel's name of the first serial port.
    :param uefi: pairs of firmware code and variable store, in order of preference; those for
        Secure Boot have Microsoft's keys in the store.
    :param package: the Debian package of the UEFI firmware.
    """

    program: str
    machines: Mapping[Firmware, str]
    console: str
    uefi: Mapping[Firmware, tuple[tuple[str, str], ...]]
    package: str


#: Differences between the supported processors of guests.
ARCHITECTURES: Mapping[str, Architecture] = {
    "x86_64": Architecture(
        program="qemu-system-x86_64",
        # graphics=off makes SeaBIOS and GRUB write to the serial console as well.
        machines={
            Firmware.BIOS: "pc,graphics=off",
            Firmware.UEFI: "q35,graphics=off",
            # Debian's code for Secure Boot does not start without system management mode.
            Firmware.SECURE_BOOT: "q35,graphics=off,smm=on",
        },
        console="ttyS0",
        uefi={
            # Debian's with 4 MiB and with 2 MiB of flash, then Fedora's.
            Firmware.UEFI: (
                ("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
                ("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
                ("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
            ),
            Firmware.SECURE_BOOT: (
                ("/usr/share/OVMF/OVMF_CODE_4M.secboot.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"),
                ("/usr/share/OVMF/OVMF_CODE.secboot.fd", "/usr/share/OVMF/OVMF_VARS.ms.fd"),
                (
                    "/usr/share/edk2/ovmf/OVMF_CODE.secboot.fd",
                    "/usr/share/edk2/ovmf/OVMF_VARS.secboot.fd",
                ),
            ),
        },
        package="ovmf",
    ),
    "aarch64": Architecture(
        program="qemu-system-aarch64",
        machines=dict.fromkeys(Firmware, "virt"),
        console="ttyAMA0",
        uefi={
            Firmware.UEFI: (
                ("/usr/share/AAVMF/AAVMF_CODE.fd", "/usr/share/AAVMF/AAVMF_VARS.fd"),
                ("/usr/share/edk2/aarch64/QEMU_EFI-pflash.raw", "/usr/share/edk2/aarch64/vars.raw"),
            ),
            # Debian has had this store since bookworm.
            Firmware.SECURE_BOOT: (
                ("/usr/share/AAVMF/AAVMF_CODE.ms.fd", "/usr/share/AAVMF/AAVMF_VARS.ms.fd"),
            ),
        },
        package="qemu-efi-aarch64",
    ),
}


@dataclass(frozen=True)
class NetworkCard:
    """A network interface of the machine.

    :param netdev: its backend, the value of ``-netdev`` without the id.
    :cvar ROM: without its option ROM the firmware does not try to boot from the network.
    """

    DRIVER: ClassVar = "virtio-net-pci"
    ROM: ClassVar = ""

    netdev: str
    mac: str

    def arguments(self, number: int) -> list[str]:
        """Return QEMU's options for the card, whose id is ``nic`` and its number."""
        kind, _, options = self.netdev.partition(",")
        backend = ",".join(part for part in (kind, f"id=net{number}", options) if part)
        device = (
            f"{self.DRIVER},id=nic{number},netdev=net{number},mac={self.mac},romfile={self.ROM}"
        )
        return ["-netdev", backend, "-device", device]


@dataclass(frozen=True)
class MachineConfig:
    """Configuration of one virtual machine.

    :param name: a short name, for messages.
    :param uuid: the SMBIOS UUID; for a guest of Nova, the server's id.
    :param disk: the writable disk, usually an overlay; None for a diskless machine.
    :param disk_format: ``qcow2`` or ``raw``.
    :param backing: the backing files of the disk and their formats, the next one first; the
        headers' own references are ignored.
    :param kernel: for a direct kernel boot, with ``initrd`` and the kernel's command line
        ``append``; None boots from the disk through the firmware.
    :param memory_mib: the guest's memory in MiB.
    :param mac: of the network interface, unless the wiring sets another.
    :param cpu: QEMU's CPU model; "" takes the accelerator's choice.
    :param cpu_reason: the reason for the model, for people.
    :param config_drive: a file system image that is attached as a second disk.
    :param smbios: fields of SMBIOS type 1 beside the UUID and the serial number.
    :param tpm: add a TPM 2.0, emulated by swtpm.
    :param display: add a graphics adapter, which
        :meth:`~hotplate.machine.qemu.QemuMachine.screenshot` needs.
    :param extra: arguments for QEMU that are appended as they are.
    """

    name: str
    uuid: str
    disk: Path | None = None
    disk_format: str = "qcow2"
    backing: tuple[tuple[Path, str], ...] = ()
    kernel: Path | None = None
    initrd: Path | None = None
    append: str = ""
    firmware: Firmware = Firmware.BIOS
    arch: str = "x86_64"
    memory_mib: int = 512
    cpus: int = 2
    cpu: str = ""
    cpu_reason: str = ""
    mac: str = "52:54:00:a9:fe:0f"
    config_drive: Path | None = None
    smbios: Mapping[str, str] = field(default_factory=lambda: OPENSTACK_SMBIOS)
    tpm: bool = False
    display: bool = False
    extra: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}-{self.arch}-{self.firmware.value}"


def uefi_files(arch: str, firmware: Firmware) -> tuple[Path, Path]:
    """Return the UEFI code and the pristine variable store of this host.

    :param arch: a key of :data:`ARCHITECTURES`.
    :raises HostError: when there is none.
    """
    row = ARCHITECTURES[arch]
    for code, variables in row.uefi[firmware]:
        if Path(code).exists() and Path(variables).exists():
            return Path(code), Path(variables)
    keys = " with Microsoft's keys for Secure Boot" if firmware is Firmware.SECURE_BOOT else ""
    raise HostError(
        f"no UEFI firmware{keys} for {arch} was found on this host",
        hint=f"apt-get install --no-install-recommends {row.package}",
    )


def _quoted(value: object) -> str:
    """Return a value for a QEMU option list, with commas doubled."""
    return str(value).replace(",", ",,")


class Names:
    """Names of files on QEMU's command line: their paths."""

    def block(self, path: Path, *, write: bool) -> str:  # noqa: ARG002
        """Return the name of the file of a block device."""
        return _quoted(path)

    def blob(self, path: Path) -> str:
        """Return the name of a file that is read whole."""
        return str(path)


def command_line(
    config: MachineConfig,
    *,
    names: Names | HandedFiles,
    accelerator: tuple[str, ...],
    cpu: str,
    cards: Sequence[NetworkCard],
    channels: Mapping[str, str],
    variables: Path,
    memory: str,
) -> list[str]:
    """Return QEMU's arguments, without the program itself.

    :param names: the names of files.
    :param accelerator: the options that choose the accelerator.
    :param cpu: the CPU model, unless ``config.cpu`` names one.
    :param cards: its network interfaces, in the guest's order.
    :param channels: a character device backend, such as ``socket,fd=10``, for each of
        ``console``, ``qmp`` and ``shell``; for a TPM ``tpm``, a connection to swtpm.
    :param variables: the machine's own copy of the UEFI variable store.
    :param memory: the file of the guest's memory, as options of QEMU's ``memory-backend-file``; ""
        for QEMU's own.
    """
    row = ARCHITECTURES[config.arch]
    virt = config.arch != "x86_64"
    arguments = [
        "-name",
        # Threads have names, such as "CPU 0/TCG", in ps and top.
        f"{_quoted(config.name)},debug-threads=on",
        # Only the devices named here: no default VGA, floppy or network card.
        "-nodefaults",
        # The host's own /etc/qemu must not change the machine.
        "-no-user-config",
        "-display",
        "none",
        "-machine",
        # Takes the memory from the object "ram" below instead of QEMU's own.
        row.machines[config.firmware] + (",memory-backend=ram" if memory else ""),
        *accelerator,
        "-cpu",
        config.cpu or cpu,
        "-smp",
        str(config.cpus),
        "-m",
        f"{config.memory_mib}M",
        "-uuid",
        config.uuid,
        "-smbios",
        "type=1,"
        + ",".join(
            f"{key}={_quoted(value)}"
            for key, value in {**config.smbios, "uuid": config.uuid, "serial": config.uuid}.items()
        ),
        "-rtc",
        "base=utc",
        # A guest that panics stays as it is, for the screenshot and the console's last lines.
        "-action",
        "panic=pause",
    ]
    if memory:
        size = f"size={config.memory_mib}M"
        arguments += ["-object", f"memory-backend-file,id=ram,{size},{memory}"]
    if not virt:
        # The ISA device, which "virt" lacks, turns a kernel's panic into GUEST_PANICKED.
        arguments += ["-device", "pvpanic"]
    if config.tpm:
        arguments += ["-chardev", _chardev(channels["tpm"], "tpm")]
        arguments += ["-tpmdev", "emulator,id=tpm0,chardev=tpm"]
        # Nova's default model (hw_tpm_model).
        arguments += ["-device", ("tpm-tis-device" if virt else "tpm-tis") + ",tpmdev=tpm0"]
    if config.display:
        arguments += ["-device", "virtio-gpu-pci" if virt else "VGA"]
    for name in ("console", "qmp", "shell"):
        arguments += ["-chardev", _chardev(channels[name], name)]
    arguments += ["-serial", "chardev:console"]
    # mode=control is QMP; the default is the monitor for people.
    arguments += ["-mon", "chardev=qmp,mode=control"]
    arguments += ["-device", "virtio-serial-pci,id=serial0"]
    arguments += ["-device", f"virtserialport,bus=serial0.0,chardev=shell,name={SHELL_PORT}"]
    # Without it a guest may wait for random numbers when it makes its ssh host keys.
    arguments += [
        "-object",
        "rng-random,id=rng0,filename=/dev/urandom",
        "-device",
        "virtio-rng-pci,rng=rng0",
    ]
    # A restored guest has not moved, so QEMU must not ask it to announce itself: Linux 6.12.118
    # waits for ever if its link is put down at that moment, as virtnet_close() holds the lock that
    # the announcement takes. The setting covers cards that are plugged in later.
    arguments += ["-global", "virtio-net-device.guest_announce=off"]
    for number, card in enumerate(cards):
        arguments += card.arguments(number)
    if config.firmware in row.uefi:
        code = uefi_files(config.arch, config.firmware)[0]
        arguments += [
            "-drive",
            # Unit 0 is the code, which all machines share, unit 1 the store of this one's
            # variables.
            f"if=pflash,unit=0,format=raw,readonly=on,file={_quoted(code)}",
            "-drive",
            f"if=pflash,unit=1,format=raw,file={names.block(variables, write=True)}",
        ]
    if config.firmware is Firmware.SECURE_BOOT and not virt:
        # Only the firmware, in system management mode, writes to them, so no guest changes keys.
        arguments += ["-global", "driver=cfi.pflash01,property=secure,value=on"]
    if config.disk is not None:
        disk = names.block(config.disk, write=True)
        behind = [(names.block(path, write=False), kind) for path, kind in config.backing]
        arguments += _drive("disk0", disk, config.disk_format, boot=True, behind=behind)
    if config.config_drive is not None:
        drive = names.block(config.config_drive, write=False)
        arguments += _drive("config0", drive, "raw", boot=False)
    if config.kernel is not None:
        arguments += ["-kernel", names.blob(config.kernel), "-append", config.append]
        if config.initrd is not None:
            arguments += ["-initrd", names.blob(config.initrd)]
    return [*arguments, *config.extra]


def _chardev(backend: str, name: str) -> str:
    """Insert the id into a character device's options, after the name of the backend."""
    kind, _, options = backend.partition(",")
    return ",".join(part for part in (kind, f"id={name}", options) if part)


def _drive(
    name: str, file: str, kind: str, *, boot: bool, behind: Sequence[tuple[str, str]] = ()
) -> list[str]:
    """Return the options of one virtio disk.

    :param file: its name, quoted for an option list.
    :param behind: see :func:`hotplate.machine.files.backing_options`.
    """
    # cache=unsafe: the disk is temporary, and a guest's flush still writes QEMU's data to the
    # host's page cache, so killing QEMU loses the same data as a power cut.
    # discard=unmap: the overlay gives back what the guest trims.
    options = f"if=none,id={name},file={file},format={kind},cache=unsafe,discard=unmap"
    options += backing_options(behind)
    if not boot:
        options += ",readonly=on"
    device = f"virtio-blk-pci,drive={name}"
    if boot:
        # The firmware starts from this disk, and never from a configuration drive.
        device += ",bootindex=1"
    return ["-drive", options, "-device", device]
