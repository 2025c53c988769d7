"""Faults of the first seconds of a boot, planted in real machines."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "machine"))

import tiny_guest

from hotplate.events import classify, console_patterns
from hotplate.events.event import Event
from hotplate.events.log import EventLog
from hotplate.machine import accelerator, wiring
from hotplate.machine.config import Firmware, MachineConfig
from hotplate.machine.qemu import QemuMachine
from hotplate.verdict.diagnosis import Diagnosis, diagnose
from hotplate.verdict.stages import Stage
from hotplate.verdict.tracker import StageTracker

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.boots,
    pytest.mark.network,
    pytest.mark.tool("qemu-system-x86_64"),
    pytest.mark.long,
]

SERVER = str(uuid.UUID(int=7))
PATIENCE = 900.0
GUEST_MIB = 256

Boot = Callable[..., Diagnosis]


def hopeless(event: Event) -> bool:
    """Return True for an event that no guest recovers from."""
    if event.source == "machine":
        return event.kind in ("panic", "exit")
    text = classify.console_text(event)
    pattern = console_patterns.match(text) if text else None
    return pattern is not None and pattern.fatal


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Boot]:
    """Return a function that boots a machine until it fails and returns the reason."""
    with ExitStack() as stack:

        def run(disk: Path, **options: Any) -> Diagnosis:
            events = EventLog()
            tracker = StageTracker(events, SERVER)
            stack.callback(tracker.close)
            config = MachineConfig(
                name="faulty",
                uuid=SERVER,
                disk=disk,
                disk_format="raw",
                memory_mib=GUEST_MIB,
                **options,
            )
            machine = stack.enter_context(
                QemuMachine(
                    config,
                    wiring=stack.enter_context(wiring.choose([80])),
                    accelerator=accelerator.choose("tcg"),
                    directory=tmp_path,
                    events=events,
                    server_id=SERVER,
                )
            )
            machine.start()
            assert events.wait(hopeless, seconds=PATIENCE), machine.console.text()
            diagnosis = diagnose(events, tracker, stack_status="CREATE_IN_PROGRESS")
            assert diagnosis is not None
            return diagnosis

        yield run


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """An empty disk."""
    path = tmp_path / "disk.raw"
    with path.open("wb") as stream:
        stream.truncate(16 << 20)
    return path


def test_empty_disk_is_named(boot, disk):
    diagnosis = boot(disk)
    assert (diagnosis.fault, diagnosis.stage) == ("no-bootable-kernel", Stage.BOOTED)
    assert "nothing to boot" in diagnosis.seen


def test_empty_disk_is_named_under_uefi(boot, disk):
    diagnosis = boot(disk, firmware=Firmware.UEFI)
    assert (diagnosis.fault, diagnosis.stage) == ("no-bootable-kernel", Stage.BOOTED)


def test_kernel_without_root_is_named(boot, disk):
    guest = tiny_guest.make()
    diagnosis = boot(disk, kernel=guest.kernel, append="console=ttyS0 panic=0 root=/dev/vda1")
    assert (diagnosis.fault, diagnosis.stage) == ("root-not-found", Stage.BOOTED)


def test_kernel_whose_init_dies_is_named(boot, disk):
    guest = tiny_guest.make()
    append = "console=ttyS0 panic=0 quiet rdinit=/dhcp"
    diagnosis = boot(disk, kernel=guest.kernel, initrd=guest.initrd, append=append)
    assert (diagnosis.fault, diagnosis.stage) == ("kernel-panic", Stage.BOOTED)
    assert "Attempted to kill init" in diagnosis.seen
