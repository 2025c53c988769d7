"""The power is cut: a disk that keeps only what was synced loses no result and repeats no hook.

``test_crash.py`` kills the runner, which leaves all that it wrote. ``tools/crash-matrix`` cuts the
power of booted guests.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .test_crash import WRITES, cut_before, kill, kill_hook, settle

pytestmark = [pytest.mark.root, pytest.mark.tool("mkfs.ext4")]

BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Disk:
    """A file system for the state of a guest's runner."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "disk"
        self.file = directory / "disk.ext4"
        self.cut = directory / "cut.ext4"
        self.root.mkdir()
        subprocess.run(["mkfs.ext4", "-q", self.file, "16M"], check=True)

    def mount(self) -> None:
        # The kernel would write by itself every 5 s.
        subprocess.run(["mount", "-o", "loop,commit=600", self.file, self.root], check=True)

    def umount(self) -> None:
        # Lazily: the hook's pump, which ends by itself, may still be there.
        subprocess.run(["umount", "--lazy", self.root], check=True)

    def boot_from_cut(self) -> None:
        """Go back to the disk as it was copied to ``cut``; the machine's boot gets another id."""
        self.umount()
        self.cut.rename(self.file)
        self.mount()
        for record in self.root.glob("deployed/*.json"):
            record.write_text(record.read_text().replace(BOOT_ID, "another"))


@pytest.fixture
def disk(guest) -> Iterator[Disk]:
    disk = Disk(guest.root)
    disk.mount()
    guest.state = disk.root / "deployed"
    yield disk
    disk.umount()


def body_of_signal(heat) -> dict:
    """Return the body of the signals: repeated is fine, changed is not."""
    (body,) = {json.dumps(each) for each in heat.signals}
    return json.loads(body)


@pytest.mark.parametrize("step", range(WRITES))
def test_power_cut_before_each_write_loses_nothing(guest, heat, cfn, disk, step):
    guest.metadata(cfn())
    assert cut_before(guest, step, first=("cp", disk.file, disk.cut))
    had_finished = "heat-config: finished" in guest.console.read_text()
    disk.boot_from_cut()
    settle(guest)
    assert guest.state_of("d-1") == "signalled"
    assert guest.runs("d-1") <= 1
    body = body_of_signal(heat)
    if body["deploy_status_code"] == 0:
        assert guest.runs("d-1") == 1
    else:
        assert "interrupted" in body["deploy_stderr"]
        assert not had_finished


def test_power_cut_while_a_hook_runs_is_reported(guest, heat, cfn, disk, wait_until):
    guest.shell_hook("shell", guest.gate)
    guest.metadata(cfn())
    process = guest.start()
    wait_until(lambda: guest.runs("d-1"))
    shutil.copy(disk.file, disk.cut)
    kill(process)
    kill_hook(guest)
    disk.boot_from_cut()
    settle(guest)
    assert guest.runs("d-1") == 1
    assert "interrupted" in body_of_signal(heat)["deploy_stderr"]
