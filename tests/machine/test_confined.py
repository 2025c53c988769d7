"""Confinement of QEMU on the host."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Made, attached

from hotplate.machine import wiring
from hotplate.machine.files import HandedFiles, backing_options

Make = Callable[..., Made]
boots = [pytest.mark.boots, pytest.mark.network, pytest.mark.tool("qemu-system-x86_64")]


def status(pid: int | None) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text()
    return {
        key: value.strip() for key, _, value in (line.partition(":") for line in text.split("\n"))
    }


def marked(function: Callable[..., None]) -> Callable[..., None]:
    for mark in boots:
        function = mark(function)
    return function


@marked
@pytest.mark.parametrize("wanted", [*wiring.WIRINGS])
def test_qemu_is_confined_and_works(make: Make, tmp_path: Path, wanted: str) -> None:
    base = tmp_path / "base.raw"
    base.write_bytes(b"behind".ljust(1 << 20, b"\0"))
    disk = tmp_path / "disk.qcow2"
    command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, disk]
    subprocess.run(command, check=True)
    base.chmod(0o600)
    disk.chmod(0o600)
    made = make(wanted=wanted, disk=disk, backing=((base, "raw"),))
    shell = attached(made.machine)
    about = status(made.machine.pid)
    uids = {int(word) for word in about["Uid"].split()}
    if os.geteuid() == 0:
        assert 0 not in uids
        assert about["Groups"] in ("", str(Path("/dev/kvm").stat().st_gid))
    assert (about["Seccomp"], about["NoNewPrivs"]) == ("2", "1")
    assert int(about["CapEff"], 16) == 0
    opened = [os.readlink(each) for each in Path(f"/proc/{made.machine.pid}/fd").iterdir()]  # noqa: PTH115
    assert str(disk) in opened
    # The backing file is read, and the disk is written to.
    assert shell.run("dd if=/dev/vda bs=6 count=1").stdout == b"behind"
    shell.run("echo written | dd of=/dev/vda bs=512 seek=4 conv=fsync,notrunc").check()
    assert shell.run("dd if=/dev/vda bs=512 skip=4 count=1").stdout.startswith(b"written")
    assert base.read_bytes()[:6] == b"behind"
    assert shell.run("echo ask | timeout 4 nc 169.254.169.254 80").text == "tiny 80"


@marked
def test_screenshot_works_with_a_confined_qemu(make: Make, tmp_path: Path) -> None:
    made = make(display=True)
    picture = tmp_path / "screen.png"
    made.machine.screenshot(picture)
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


@marked
@pytest.mark.parametrize("status", [0, 1])
def test_qemu_without_seccomp_gets_no_sandbox_option(
    make: Make, tmp_path: Path, status: int
) -> None:
    qemu = tmp_path / "qemu"
    # A QEMU without seccomp ends at the option: "-sandbox support is not enabled in this binary".
    qemu.write_text(f'#!/bin/sh\n[ "$*" = "-sandbox on -version" ] && exit {status}\nexit 9\n')
    qemu.chmod(0o755)
    machine = make(start=False).machine
    machine._program = str(qemu)
    assert machine._sandbox()[:1] == ([] if status else ["-sandbox"])


def test_backing_files_are_named_one_by_one() -> None:
    assert backing_options([("/dev/fdset/2", "qcow2"), ("/dev/fdset/3", "raw")]) == (
        ",backing.driver=qcow2,backing.file.driver=file,backing.file.filename=/dev/fdset/2"
        ",backing.backing.driver=raw,backing.backing.file.driver=file"
        ",backing.backing.file.filename=/dev/fdset/3"
    )


def test_kernel_readable_by_root_only_is_handed_over_as_a_copy(tmp_path: Path) -> None:
    secret = tmp_path / "vmlinuz"
    secret.write_bytes(b"kernel")
    secret.chmod(0o600)
    with HandedFiles(first=10, directory=tmp_path) as files:
        assert files.blob(secret) == "/proc/self/fd/10"
        held = os.fstat(files.descriptors[0])
        if os.geteuid() == 0:
            assert stat.S_IMODE(held.st_mode) == 0o444
        assert Path(f"/proc/self/fd/{files.descriptors[0]}").read_bytes() == b"kernel"
    assert [each.name for each in tmp_path.iterdir()] == ["vmlinuz"]
