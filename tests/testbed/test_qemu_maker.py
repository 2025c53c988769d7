"""Refusals of the maker of QEMU's machines, before anything is started."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import tiny_disk

from hotplate.errors import HostError, HotplateError, UsageError
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.settings import AcceleratorChoice, FirmwareChoice, Settings
from hotplate.testbed.boot_images import BootImages
from hotplate.testbed.qemu_maker import QemuMaker

pytestmark = pytest.mark.tool("qemu-system-x86_64")


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image.open(tiny_disk.make(tmp_path / "tiny.raw"))


def refusal(image: Image, kind: type[HotplateError], **settings: object) -> HotplateError:
    """Return the error of a maker with these settings."""
    with pytest.raises(kind) as caught:
        QemuMaker(
            BootImages(image, None),
            image,
            settings=Settings(accelerator=AcceleratorChoice.TCG, **settings),  # type: ignore[arg-type]
            events=EventLog(),
            segments=None,
            saves=False,
        )
    return caught.value


def test_secure_boot_without_its_firmware_is_refused(image, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: "VARS" not in path.name)
    error = refusal(image, HostError, firmware=FirmwareChoice.SECURE_BOOT)
    assert error.message.startswith("no UEFI firmware with Microsoft's keys for Secure Boot")
    assert error.hint == "apt-get install --no-install-recommends ovmf"


def test_tpm_without_swtpm_is_refused(image, monkeypatch, tmp_path):
    (tmp_path / "qemu-system-x86_64").symlink_to(str(shutil.which("qemu-system-x86_64")))
    monkeypatch.setenv("PATH", str(tmp_path))
    error = refusal(image, HostError, tpm=True)
    assert error.message == 'the program "swtpm" was not found in PATH'
    assert error.hint == "apt-get install --no-install-recommends swtpm"


def test_secure_boot_of_a_kernel_beside_the_image_is_refused(image):
    """OVMF would start it although none of the firmware's keys has signed it."""
    beside = replace(image, kernel=Path("/tmp/web.vmlinuz"))
    error = refusal(beside, UsageError, firmware=FirmwareChoice.SECURE_BOOT)
    assert 'tiny.raw" is beside it' in error.message
    assert "for whole disks: hotplate build --secure-boot" in error.hint
