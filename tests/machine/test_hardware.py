"""The hardware of machines that really boot: firmware, processors, drives, interfaces."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_guest
from tiny_machines import BOOT_SECONDS, Made, ask, attached

from hotplate.errors import HostError, UsageError
from hotplate.machine.config import Firmware
from hotplate.machine.qemu import QemuMachine
from hotplate.timing.deadline import Deadline, retry

pytestmark = [pytest.mark.boots, pytest.mark.network, pytest.mark.tool("qemu-system-x86_64")]

Make = Callable[..., Made]


class LooseCable:
    """A cable that leads nowhere."""

    mac = "fa:16:3e:00:00:09"
    listeners: dict[int, socket.socket] = {}

    def plug(self) -> socket.socket:
        end, self.other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        return end

    def connect(self, port: int, *, seconds: float = 5.0) -> socket.socket:
        raise ConnectionError(port, seconds)


def test_uefi_boots_keeps_its_variables_and_refuses_hot_plug(make: Make) -> None:
    if not Path("/usr/share/OVMF").exists():
        pytest.skip("this host has no UEFI firmware: apt-get install ovmf")
    made = make(firmware=Firmware.UEFI, memory_mib=320)
    shell = attached(made.machine)
    assert shell.run("ls /sys/firmware").text.split().count("efi") == 1
    assert (made.machine.directory / "efi-vars.fd").stat().st_mode & 0o777 == 0o600
    for _ in range(2):
        with pytest.raises(UsageError, match=r"keeps its interfaces while it runs: .*hotplug"):
            made.machine.attach(LooseCable())
        with pytest.raises(UsageError, match=r"keeps its interfaces while it runs: .*hotplug"):
            made.machine.detach(0, Deadline(5, "the interface"))
    assert made.machine.running


def test_guest_under_secure_boot_sees_that_it_is_on(make: Make) -> None:
    if not Path("/usr/share/OVMF/OVMF_VARS_4M.ms.fd").exists():
        pytest.skip("this host has no firmware with Secure Boot: apt-get install ovmf")
    made = make(firmware=Firmware.SECURE_BOOT, memory_mib=320)
    shell = attached(made.machine)
    assert shell.run("dmesg | grep -c 'secureboot: Secure boot enabled'").text == "1"
    assert (made.machine.directory / "efi-vars.fd").stat().st_mode & 0o777 == 0o600


#: Prints the reply of a TPM to TPM2_ReadClock (TPM 2.0 Library, part 3) as hexadecimal digits.
READ_CLOCK = (
    r"exec 3<>/dev/tpm0; printf '\200\1\0\0\0\12\0\0\1\201' >&3; "
    "dd bs=64 count=1 <&3 2>/dev/null | hexdump -v -e '1/1 \"%02x\"'; exec 3>&-"
)


def resets(machine: QemuMachine) -> int:
    """Return how often the guest's TPM has been reset, which the TPM itself keeps count of."""
    reply = attached(machine).run(READ_CLOCK).text
    # Behind a header of ten bytes, TPMS_TIME_INFO: the time and the clock, of eight bytes each.
    assert reply[12:20] == "00000000", reply
    return int(reply[52:60], 16)


def swtpms(directory: Path) -> list[int]:
    """Return the process ids of the swtpm whose state is below a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            where = (entry / "cwd").readlink()
            if where.is_relative_to(directory) and (entry / "exe").readlink().name == "swtpm":
                found.append(int(entry.name))
    return found


@pytest.mark.tool("swtpm")
def test_tpm_is_confined_and_keeps_its_state(make: Make, tmp_path: Path) -> None:
    """The TPM of a restored guest begins without a state of its own."""
    machine = make(tpm=True, name="saved").machine
    state = machine.directory / "tpm"
    first = resets(machine)
    (swtpm,) = swtpms(state)
    about = Path(f"/proc/{swtpm}/status").read_text()
    assert "NoNewPrivs:\t1" in about
    if os.geteuid() == 0:
        assert "Uid:\t0" not in about
        assert state.stat().st_uid != 0
    assert state.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o007 for each in state.iterdir()} == {0}
    machine.kill()
    assert not swtpms(state)
    machine.start()
    assert resets(machine) == first + 1
    machine.save_state(tmp_path / "state")
    machine.kill()
    restored = make(tpm=True, name="restored", uuid=machine.config.uuid, start=False).machine
    restored.start(incoming=tmp_path / "state")
    assert resets(restored) == first + 1


def test_tpm_that_does_not_run_is_an_error_message(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The TPM's user could not enter pytest's own directories.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        swtpm = Path(folder) / "swtpm"
        swtpm.write_text("#!/bin/sh\necho 'swtpm: no TPM today' >&2\nexit 1\n")
        swtpm.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        with pytest.raises(HostError, match=r'could not start the machine "tiny": .*no TPM today'):
            make(tpm=True)


@pytest.mark.tool("swtpm")
def test_tpm_ends_with_a_killed_keeper(make: Make) -> None:
    made = make(tpm=True)
    (swtpm,) = swtpms(made.machine.directory)
    os.kill(made.wiring.keeper.pid, signal.SIGKILL)
    ended = Deadline(60, "the TPM to end")
    retry(lambda _: not Path(f"/proc/{swtpm}/cwd").exists(), ended)


@pytest.mark.tool("qemu-system-aarch64")
def test_guest_of_another_processor_boots(make: Make) -> None:
    if not Path("/usr/share/AAVMF").exists():
        pytest.skip("this host has no UEFI firmware for ARM: apt-get install qemu-efi-aarch64")
    tiny = tiny_guest.make(arch="aarch64")
    made = make(
        arch="aarch64",
        firmware=Firmware.UEFI,
        kernel=tiny.kernel,
        initrd=tiny.initrd,
        append=tiny.append,
        memory_mib=384,
    )
    shell = attached(made.machine)
    assert shell.run("uname -m").text == "aarch64"
    # cloud-init detects its data source by this.
    shown = shell.run("cd /sys/class/dmi/id; cat sys_vendor product_uuid").text.split("\n")
    assert shown[:2] == ["OpenStack Foundation", made.machine.config.uuid]
    assert ask(shell, "169.254.169.254", 80) == "tiny 80"


def test_smbios_and_config_drive_are_seen_by_the_guest(make: Make, tmp_path: Path) -> None:
    # A long name with a comma and spaces is neither split nor taken for an option.
    directory = tmp_path / f"a, comma and spaces {'x' * 100}"
    directory.mkdir()
    drive = directory / "config.img"
    drive.write_bytes(b"config-2 data".ljust(1 << 20, b"\0"))
    disk = directory / "disk.raw"
    disk.write_bytes(b"the disk".ljust(1 << 20, b"\0"))
    made = make(directory=directory, disk=disk, disk_format="raw", config_drive=drive)
    shell = attached(made.machine)
    shown = shell.run("cd /sys/class/dmi/id; cat sys_vendor product_name product_uuid").text
    assert shown.splitlines() == [
        "OpenStack Foundation",
        "OpenStack Nova",
        made.machine.config.uuid,
    ]
    assert shell.run("head -c 8 /dev/vda; head -c 8 /dev/vdb").text == "the diskconfig-2"
    assert shell.run("cat /sys/block/vdb/ro").text == "1"
    assert 50 < made.machine.resident_mib() < 1200
    made.machine.kill()
    assert made.machine.resident_mib() == 0


def test_refused_command_line_is_an_error_message(make: Make) -> None:
    with pytest.raises(HostError, match=r'could not start the machine "tiny": .*no-such-device'):
        make(extra=("-device", "no-such-device"))
    with pytest.raises(HostError, match=r'"/nowhere/disk\.qcow2" of a machine cannot be opened'):
        make(disk=Path("/nowhere/disk.qcow2"))


def test_script_starts_the_machine_by_hand(make: Make, tmp_path: Path) -> None:
    # A path is neither taken for an option nor split.
    disk = tmp_path / "my images -x 'y'" / "disk.qcow2"
    disk.parent.mkdir()
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", disk, "1M"], check=True)
    made = make(start=False, disk=disk, tpm=shutil.which("swtpm") is not None)
    script = made.machine.write_script()
    subprocess.run(["sh", "-n", script], check=True)
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    with subprocess.Popen(
        [script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(sockets)},
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        timer = threading.Timer(BOOT_SECONDS, process.kill)
        timer.start()
        seen = b""
        while tiny_guest.READY.encode() not in seen:
            data = os.read(process.stdout.fileno(), 4096)
            assert data, seen
            seen += data
        process.stdin.write(b"\x01x")  # as a person would end it
        process.stdin.flush()
        assert process.wait(60) == 0
        timer.cancel()
    # Its sockets are removed with it.
    deadline = Deadline(60, "the directory of the sockets to go")
    retry(lambda _: not list(sockets.iterdir()), deadline)
