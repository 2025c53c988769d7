"""The command line made from a configuration; test_machine.py runs QEMU with it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from hotplate.errors import HostError
from hotplate.machine.config import (
    ARCHITECTURES,
    Firmware,
    MachineConfig,
    Names,
    NetworkCard,
    command_line,
    uefi_files,
)

CHANNELS = {name: f"socket,fd={n}" for n, name in enumerate(("console", "qmp", "shell", "tpm"))}


def arguments(**options: object) -> list[str]:
    settings = {"name": "web", "uuid": "6f1ed002-ab39-4e77-8b3b-0c5e9bfc9a5e"} | options
    return command_line(
        MachineConfig(**settings),  # type: ignore[arg-type]
        names=Names(),
        accelerator=("-accel", "tcg"),
        cpu="qemu64",
        cards=[NetworkCard("user", "52:54:00:a9:fe:0f")],
        channels=CHANNELS,
        variables=Path("/vars"),
        memory="",
    )


def values(line: list[str], option: str) -> list[str]:
    return [value for name, value in itertools.pairwise(line) if name == option]


def test_smbios_names_openstack() -> None:
    assert values(arguments(), "-smbios") == [
        "type=1,manufacturer=OpenStack Foundation,product=OpenStack Nova,"
        "uuid=6f1ed002-ab39-4e77-8b3b-0c5e9bfc9a5e,serial=6f1ed002-ab39-4e77-8b3b-0c5e9bfc9a5e"
    ]
    assert "manufacturer" not in values(arguments(smbios={}), "-smbios")[0]


def test_commas_are_doubled() -> None:
    line = arguments(name="a,b", disk=Path("/d,ir/x"), smbios={"product": "c,d"})
    assert values(line, "-name") == ["a,,b,debug-threads=on"]
    assert values(line, "-drive")[0].startswith("if=none,id=disk0,file=/d,,ir/x,format=qcow2")
    assert "product=c,,d" in values(line, "-smbios")[0]


def test_kernel_is_booted_with_its_command_line() -> None:
    line = arguments(kernel=Path("/k"), initrd=Path("/i"), append="root=/dev/vda a,b")
    assert values(line, "-append") == ["root=/dev/vda a,b"]
    assert values(line, "-initrd") == ["/i"]
    assert "-kernel" not in arguments()


def test_each_network_card_has_its_backend() -> None:
    macs = ("fa:16:3e:00:00:05", "fa:16:3e:00:00:06")
    options = ("user,ipv6=off", "dgram,local.type=fd,local.str=13")
    cards = [NetworkCard(netdev, mac) for netdev, mac in zip(options, macs, strict=True)]
    line = [word for number, card in enumerate(cards) for word in card.arguments(number)]
    assert values(line, "-netdev") == [
        "user,id=net0,ipv6=off",
        "dgram,id=net1,local.type=fd,local.str=13",
    ]
    devices = [value for value in values(arguments(), "-device") if "virtio-net" in value]
    assert devices == ["virtio-net-pci,id=nic0,netdev=net0,mac=52:54:00:a9:fe:0f,romfile="]
    assert values(line, "-device")[1].endswith(f"id=nic1,netdev=net1,mac={macs[1]},romfile=")


def test_cpu_of_the_machine_overrides_the_accelerators() -> None:
    assert values(arguments(cpu="Nehalem"), "-cpu") == ["Nehalem"]
    assert values(arguments(), "-cpu") == ["qemu64"]


@pytest.mark.parametrize(("arch", "device"), [("x86_64", "tpm-tis"), ("aarch64", "tpm-tis-device")])
def test_tpm_is_that_of_its_architecture(arch: str, device: str) -> None:
    line = arguments(arch=arch, tpm=True)
    assert values(line, "-tpmdev") == ["emulator,id=tpm0,chardev=tpm"]
    assert "socket,id=tpm,fd=3" in values(line, "-chardev")
    assert f"{device},tpmdev=tpm0" in values(line, "-device")
    assert "tpm" not in " ".join(arguments(arch=arch))


def test_only_the_disk_is_writable() -> None:
    line = arguments(disk=Path("/disk"), config_drive=Path("/drive"))
    disk, drive = values(line, "-drive")
    assert "readonly" not in disk
    assert "readonly=on" in drive


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("firmware", Firmware)
def test_every_architecture_has_a_machine(name: str, firmware: Firmware) -> None:
    row = ARCHITECTURES[name]
    assert row.machines[firmware]
    assert row.program.endswith(name)
    assert "pvpanic" not in " ".join(arguments(arch=name)) or name == "x86_64"


def test_missing_firmware_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)
    with pytest.raises(HostError, match="no UEFI firmware for aarch64") as caught:
        uefi_files("aarch64", Firmware.UEFI)
    assert "qemu-efi-aarch64" in caught.value.hint
    with pytest.raises(HostError, match="Microsoft's keys for Secure Boot for x86_64") as caught:
        uefi_files("x86_64", Firmware.SECURE_BOOT)
    assert "ovmf" in caught.value.hint


#: Files of the package ovmf that matter: bullseye, trixie and sid (ovmf-generic), Ubuntu 20.04.
OVMF = {
    "bullseye": ("CODE CODE.secboot CODE_4M CODE_4M.secboot VARS VARS.ms VARS_4M VARS_4M.ms"),
    "trixie": ("CODE_4M CODE_4M.secboot VARS_4M VARS_4M.ms"),
    "focal": ("CODE CODE.ms CODE.secboot VARS VARS.ms"),
}


@pytest.mark.parametrize("release", OVMF)
def test_firmware_of_secure_boot_has_its_own_code_and_store(
    release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {Path(f"/usr/share/OVMF/OVMF_{name}.fd") for name in OVMF[release].split()}
    monkeypatch.setattr(Path, "exists", lambda path: path in there)
    code, variables = uefi_files("x86_64", Firmware.SECURE_BOOT)
    assert code.name.endswith(".secboot.fd")
    assert variables.name.endswith(".ms.fd")
    assert ("4M" in code.name) == ("4M" in variables.name)
    assert not {code, variables} & {*uefi_files("x86_64", Firmware.UEFI)}


def test_only_secure_boot_keeps_a_guest_from_its_variables() -> None:
    secure = arguments(firmware=Firmware.SECURE_BOOT)
    assert values(secure, "-machine") == ["q35,graphics=off,smm=on"]
    assert "driver=cfi.pflash01,property=secure,value=on" in values(secure, "-global")
    assert "secboot" in values(secure, "-drive")[0]
    plain = arguments(firmware=Firmware.UEFI)
    assert values(plain, "-machine") == ["q35,graphics=off"]
    assert not [word for word in plain if "cfi.pflash01" in word or "secboot" in word]
    arm = arguments(arch="aarch64", firmware=Firmware.SECURE_BOOT)
    assert not [word for word in arm if "cfi.pflash01" in word or "smm" in word]
