"""Confinement of QEMU on the host, and of its guest to the served ports."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tiny_guest
from tiny_machines import Answerer, Made, ask, attached, machines

from hotplate.guest.shell import Shell
from hotplate.machine import wiring
from hotplate.machine.files import HandedFiles, backing_options
from hotplate.machine.qemu import QemuMachine

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


class OpenWiring(wiring.Namespace):
    """A wiring without the namespace, as a counterexample."""

    def _open(self) -> None:
        self.listeners = {}

    def netdev(self) -> str:
        return super().netdev().split(",hostfwd=", 1)[0]


@pytest.fixture
def bystander() -> Iterator[int]:
    """A server on the host's loopback that belongs to no machine; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]

        class Wire:
            listeners = {port: listener}

        Answerer(Wire(), "bystander")  # type: ignore[arg-type]
        yield port


@dataclass
class Confined:
    """A booted machine with a disk and its backing file, which only their owner may read."""

    machine: QemuMachine
    shell: Shell
    disk: Path
    base: Path


@pytest.fixture(scope="module", params=[*wiring.WIRINGS])
def confined(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Confined]:
    directory = tmp_path_factory.mktemp("confined")
    base, disk = directory / "base.raw", directory / "disk.qcow2"
    base.write_bytes(b"behind".ljust(1 << 20, b"\0"))
    command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, disk]
    subprocess.run(command, check=True)
    base.chmod(0o600)
    disk.chmod(0o600)
    with machines(tiny_guest.make(), directory) as make:
        machine = make(wanted=request.param, disk=disk, backing=((base, "raw"),)).machine
        yield Confined(machine, attached(machine), disk, base)


@marked
def test_qemu_is_confined_and_works(confined: Confined) -> None:
    about = status(confined.machine.pid)
    uids = {int(word) for word in about["Uid"].split()}
    if os.geteuid() == 0:
        assert 0 not in uids
        assert about["Groups"] in ("", str(Path("/dev/kvm").stat().st_gid))
    assert (about["Seccomp"], about["NoNewPrivs"]) == ("2", "1")
    assert int(about["CapEff"], 16) == 0
    opened = [os.readlink(each) for each in Path(f"/proc/{confined.machine.pid}/fd").iterdir()]  # noqa: PTH115
    assert str(confined.disk) in opened
    # The backing file is read, and the disk is written to.
    shell = confined.shell
    assert shell.run("dd if=/dev/vda bs=6 count=1").stdout == b"behind"
    shell.run("echo written | dd of=/dev/vda bs=512 seek=4 conv=fsync,notrunc").check()
    assert shell.run("dd if=/dev/vda bs=512 skip=4 count=1").stdout.startswith(b"written")
    assert confined.base.read_bytes()[:6] == b"behind"


@marked
def test_guest_reaches_only_the_served_ports(confined: Confined, bystander: int) -> None:
    shell = confined.shell
    assert shell.run("ip address show dev eth0").text.count("inet 169.254.169.15/24") == 1
    assert [ask(shell, "169.254.169.254", port) for port in (80, 8000, 80)] == [
        *("tiny 80", "tiny 8000", "tiny 80")
    ]
    for address in ("169.254.169.254", "169.254.169.3", "169.254.169.2", "127.0.0.1"):
        assert ask(shell, address, bystander, seconds=2) == "", address
    assert ask(shell, "169.254.169.254", 22, seconds=2) == ""
    outside = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), 22, socket.AF_INET)}
    for address in (*outside, "192.0.2.1"):
        assert ask(shell, str(address), bystander, seconds=2) == ""
    assert shell.run("timeout 3 nslookup example.org 169.254.169.3").rc != 0
    # There is neither a router that announces IPv6 nor an address from one.
    assert "scope global" not in shell.run("ip -6 address show dev eth0").text


@marked
def test_open_wiring_would_be_noticed(make: Make, bystander: int) -> None:
    """The test above detects a hole when there is one."""
    shell = attached(make(link=OpenWiring([])).machine)
    assert ask(shell, "169.254.169.254", bystander) == f"bystander {bystander}"


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
