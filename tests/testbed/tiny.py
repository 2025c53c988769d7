"""A tiny guest as the image of a testbed, without a disk of its own to speak of."""

from __future__ import annotations

import subprocess
from pathlib import Path

import tiny_guest

from hotplate.image.inspect import Image
from hotplate.image.plan import Layout
from hotplate.settings import AcceleratorChoice, Settings


def image(directory: Path) -> Image:
    """Return the image; its empty disk is made in a directory."""
    tiny = tiny_guest.make()
    disk = directory / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", disk, "16M"], check=True)
    return Image(disk, "qcow2", 1 << 24, Layout.PARTITION, kernel=tiny.kernel, initrd=tiny.initrd)


def settings(directory: Path) -> Settings:
    """Return the settings that it boots with soonest."""
    return Settings(
        accelerator=AcceleratorChoice.TCG,
        append="panic=-1 quiet cryptomgr.notests",
        cache=directory / "cache",
        memory=192,
        cpus=1,
    )
