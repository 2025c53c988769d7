"""Boot a whole disk with UEFI.

``tests/machine/test_hardware.py`` boots a kernel beside its image with it.
"""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.qemu, pytest.mark.boots, pytest.mark.long]


def test_uefi_disk_boots_without_an_option(uefi_disk, test_image, nothing_left):
    """The disk has no BIOS boot loader, so UEFI is chosen for it."""
    done = test_image(uefi_disk)
    assert done.status == 0, done.stdout
    assert done.verdict["facts"]["firmware"] == "uefi"
    assert done.verdict["status"] == "CREATE_COMPLETE"
    console = next(done.folder.glob("servers/*/console.log")).read_text(errors="replace")
    assert "Linux version" in console
