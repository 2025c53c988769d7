"""The memory of a guest in a file: saved once, and lent to guests that keep their changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_disk import small_disk
from tiny_machines import attached

from hotplate.errors import HostError, MachineLostError
from hotplate.machine.qemu import QemuMachine
from hotplate.machine.snapshot import GuestMemory

MIB = 192
Make = Callable[..., Any]


def digest(memory: GuestMemory) -> str:
    return hashlib.sha256(os.pread(memory.descriptor, MIB << 20, 0)).hexdigest()


def test_lent_memory_is_never_changed(make: Make, tmp_path: Path) -> None:
    devices, path = tmp_path / "devices", tmp_path / "memory"
    with GuestMemory.empty(MIB) as memory:
        first = make(memory=memory)
        attached(first.machine).run("echo before >/tmp/mark").check()
        first.machine.save_state(devices)
        memory.save(path)
        first.machine.kill()
    # The file has the devices alone, without the guest's memory.
    assert devices.stat().st_size < 4 << 20
    assert path.stat().st_mode & 0o777 == devices.stat().st_mode & 0o777 == 0o600
    on_disk = hashlib.sha256(path.read_bytes()).hexdigest()
    with GuestMemory.load(path) as lent:
        before = digest(lent)
        assert before == on_disk
        guests = [make(name=name, start=False, memory=lent) for name in ("one", "two")]
        shells = []
        for made in guests:
            made.machine.start(incoming=devices)
            shells.append(attached(made.machine))
        for number, shell in enumerate(shells):
            assert shell.run("cat /tmp/mark").text == "before"
            shell.run(f"echo {number} >/tmp/mark; head -c 20000000 /dev/zero >/tmp/more").check()
        assert [shell.run("cat /tmp/mark").text for shell in shells] == ["0", "1"]
        assert digest(lent) == before
        # A power cut drops all changes; a boot is on memory of QEMU's own.
        machine = guests[0].machine
        machine.kill()
        machine.start(incoming=devices)
        assert attached(machine).run("cat /tmp/mark").text == "before"
        assert machine._handed_memory(None, restored=False) == ""
    assert hashlib.sha256(path.read_bytes()).hexdigest() == on_disk


def test_lent_memory_is_not_writable(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    with GuestMemory.empty(1) as memory:
        os.pwrite(memory.descriptor, b"before", 5000)
        memory.save(path)
    with GuestMemory.load(path) as lent:
        # QEMU opens it in this way from the descriptor it is handed.
        again = os.open(f"/proc/self/fd/{lent.descriptor}", os.O_RDWR)
        try:
            for change in (
                lambda: os.pwrite(again, b"x", 0),
                lambda: os.ftruncate(again, 5),
                lambda: os.ftruncate(again, 2 << 20),
            ):
                with pytest.raises(PermissionError):
                    change()
            assert os.pread(again, 6, 5000) == b"before"
        finally:
            os.close(again)


def test_unused_memory_takes_no_space(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    with GuestMemory.empty(64) as memory:
        os.pwrite(memory.descriptor, b"a", 0)
        os.pwrite(memory.descriptor, b"b", (40 << 20) + 7)
        memory.save(path)
    assert path.stat().st_size == 64 << 20
    assert path.stat().st_blocks * 512 <= 1 << 20
    with GuestMemory.load(path) as lent:
        assert lent.used_mib <= 4
        assert os.pread(lent.descriptor, 1, (40 << 20) + 7) == b"b"


def test_unreadable_memory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MachineLostError, match="cannot be read"):
        GuestMemory.load(tmp_path / "memory")


@pytest.mark.root
def test_memory_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "1M") as small:
        with GuestMemory.empty(4) as memory:
            os.pwrite(memory.descriptor, b"x" * (3 << 20), 0)
            with pytest.raises(HostError, match="could not be written"):
                memory.save(small / "memory")
        assert list(small.iterdir()) == []


def test_unusable_devices_are_reported(make: Make, tmp_path: Path) -> None:
    devices = tmp_path / "devices"
    with GuestMemory.empty(MIB) as memory:
        made = make(memory=memory)
        made.machine.save_state(devices)
        memory.save(tmp_path / "memory")
        made.machine.kill()
    whole = devices.read_bytes()
    with GuestMemory.load(tmp_path / "memory") as lent:
        for name, content, options in (
            ("truncated", whole[:10_000], {}),
            ("foreign", b"no such thing" * 1000, {}),
            ("another machine's", whole, {"memory_mib": 320}),
        ):
            devices.write_bytes(content)
            machine: QemuMachine = make(name=name, start=False, memory=lent, **options).machine
            with pytest.raises(MachineLostError, match=f'"{devices}"'):
                machine.start(incoming=devices)
            assert not machine.running
