"""Boot with UEFI: a whole disk, and a partition with its kernel beside it.

test_end_to_end.py boots both kinds with BIOS.
"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.qemu, pytest.mark.boots, pytest.mark.long]


def passes(done) -> None:
    assert done.status == 0, done.stdout
    assert done.verdict["facts"]["firmware"] == "uefi"
    assert done.verdict["status"] == "CREATE_COMPLETE"


def test_uefi_disk_boots_without_an_option(images, test_image, nothing_left):
    """The disk has no BIOS boot loader, so UEFI is chosen for it."""
    disk = images.get("trixie", "disk", "script", "--firmware", "uefi")
    done = test_image(disk)
    passes(done)
    console = next(done.folder.glob("servers/*/console.log")).read_text(errors="replace")
    assert "Linux version" in console


def test_partition_image_boots_under_uefi(without_cloud_init, test_image, nothing_left):
    passes(test_image(without_cloud_init, "--firmware", "uefi"))
