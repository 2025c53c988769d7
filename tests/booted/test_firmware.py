"""What starts an image: UEFI, for a whole disk and for a kernel that is beside its partition.

BIOS, of both kinds, is what test_end_to_end.py boots with.
"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.boots, pytest.mark.builds, pytest.mark.root, pytest.mark.long]


def passes(done) -> None:
    assert done.status == 0, done.stdout
    assert done.verdict["facts"]["firmware"] == "uefi"
    assert done.verdict["status"] == "CREATE_COMPLETE"


@pytest.mark.network
def test_a_whole_disk_for_uefi(images, test_image, nothing_left):
    """It has nothing that a BIOS could start, and so is given UEFI without being told."""
    disk = images.get("trixie", "disk", "script", "--firmware", "uefi")
    done = test_image(disk)
    passes(done)
    console = next(done.folder.glob("servers/*/console.log")).read_text(errors="replace")
    assert "Linux version" in console


def test_a_partition_with_its_kernel_under_uefi(without_cloud_init, test_image, nothing_left):
    passes(test_image(without_cloud_init, "--firmware", "uefi"))
