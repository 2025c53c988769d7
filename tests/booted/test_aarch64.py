"""A whole image for ARM: built under QEMU's user emulation, booted under its system emulation."""

from __future__ import annotations

import subprocess

import pytest

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.boots,
    pytest.mark.long,
    pytest.mark.tool("qemu-system-aarch64"),
]


def test_arm64_disk_is_built_boots_and_signals(images, test_image, nothing_left):
    # A shell, since arch-test itself, which tools/setup does not install, may be missing.
    if subprocess.run(["sh", "-c", "arch-test arm64"], capture_output=True).returncode != 0:
        pytest.skip("programs for arm64 do not run on this host; docs/aarch64.rst says how")
    disk = images.get("trixie", "disk", "script", "--arch", "arm64", seconds=5400)
    done = test_image(disk, "--patience", "600", "--limit", "3600")
    assert done.status == 0, done.stdout
    assert done.verdict["status"] == "CREATE_COMPLETE"
    assert done.verdict["facts"]["firmware"] == "uefi"
