"""Refusals of the maker of containers, before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_disk

from hotplate.errors import UsageError
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.settings import FirmwareChoice, Settings
from hotplate.testbed.boot_images import BootImages
from hotplate.testbed.container_maker import ContainerMaker

pytestmark = [pytest.mark.root, pytest.mark.tool("systemd-nspawn")]


def make(folder: Path, **settings: Any) -> ContainerMaker:
    return ContainerMaker(
        BootImages(Image.open(tiny_disk.make(folder / "tiny.raw")), None),
        settings=Settings(**settings),
        events=EventLog(),
        segments=None,
        directory=folder,
    )


@pytest.mark.parametrize(
    ("settings", "sentence", "option"),
    [
        ({"tpm": True}, "a container has no TPM of its own, and tpm is set to true", "--tpm"),
        (
            {"firmware": FirmwareChoice.SECURE_BOOT},
            'a container has no firmware, and the firmware is set to "secure-boot"',
            "--firmware",
        ),
    ],
)
def test_hardware_of_virtual_machines_is_refused(tmp_path, settings, sentence, option):
    with pytest.raises(UsageError) as caught:
        make(tmp_path, **settings)
    assert caught.value.message == sentence
    assert caught.value.hint == f"leave out {option}, or take --machine qemu"
