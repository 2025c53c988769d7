"""Images without an agent, of other builders: each row of the table in docs/others.rst."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hotplate.verdict.stages import ASKED, BOOT
from tests.alpine import fetch
from tests.booted.disks import mounted, planted

pytestmark = [pytest.mark.boots, pytest.mark.builds, pytest.mark.root, pytest.mark.network]

#: Run in the root directory: bookworm's systemd-networkd is not enabled, and the build host's
#: resolv.conf stays in the image.
NETWORK_ON = (
    "systemctl --root=$PWD enable systemd-networkd && "
    "ln -sf /run/systemd/resolve/resolv.conf etc/resolv.conf"
)


@pytest.fixture(scope="module")
def alpine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Alpine, with OpenRC and musl, made for QEMU."""
    return fetch(tmp_path_factory.mktemp("alpine"))


@pytest.fixture(scope="module")
def plain(images: Any) -> Path:
    """A partition image of bookworm that diskimage-builder alone makes."""
    elements = ("debian-minimal", "baremetal", "cloud-init")
    return images.of_dib("bookworm", *elements, "-p", "openssh-server")


@pytest.fixture(scope="module")
def networked(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plain image, with its network service enabled."""
    disk = tmp_path_factory.mktemp("networked") / "plain.raw"
    return planted(plain, disk, NETWORK_ON)


@pytest.fixture
def on_xfs(networked: Path, tmp_path: Path) -> Path:
    """The same files on xfs, as ``FS_TYPE=xfs`` has them there."""
    disk = networked.with_name("xfs.raw")
    for suffix in (".vmlinuz", ".initrd"):
        disk.with_suffix(suffix).symlink_to(networked.with_suffix(suffix).name)
    disk.touch()
    os.truncate(disk, networked.stat().st_size)
    subprocess.run(["mkfs.xfs", "-q", disk], check=True)
    with mounted(networked, 0, tmp_path / "ext4") as old, mounted(disk, 0, tmp_path / "xfs") as new:
        subprocess.run(["cp", "-a", f"{old}/.", new], check=True)
        fstab = new / "etc/fstab"
        fstab.write_text(fstab.read_text().replace(" ext4 ", " xfs "))
    return disk


def unreached(verdict: Mapping[str, object]) -> list[str]:
    return [each["stage"] for each in verdict["stages"] if each["seconds"] is None]


@pytest.mark.qemu
@pytest.mark.long
@pytest.mark.xdist_group("alpine")
def test_alpine_with_an_address_of_its_own_fails_at_its_network(alpine, test_image, nothing_left):
    """It is made for QEMU's user-mode network, and configures that network's address."""
    modules = "modules=ext4,virtio_blk,virtio_net rootfstype=ext4 rw"
    # The image has no shell of ours, which would show when it is at rest.
    done = test_image(alpine, "--append", modules, "--patience", "20")
    assert done.status == 1, done.stdout
    assert '"/etc/network/interfaces" fixes the address 10.0.2.15' in done.stdout
    absent = {each["stage"]: each["absent"] for each in done.verdict["stages"]}
    assert "neither cloud-init" in absent["metadata served"]


@pytest.mark.qemu
@pytest.mark.long
@pytest.mark.xdist_group("alpine")
def test_alpine_without_its_modules_fails_at_its_boot(alpine, test_image, nothing_left):
    """Its initrd loads no driver of a disk unless the kernel's command line names it."""
    done = test_image(alpine, "--patience", "20")
    assert done.status == 1, done.stdout
    assert unreached(done.verdict)[0] == "booted"


@pytest.mark.xdist_group("alpine")
def test_alpine_is_refused_as_a_container(alpine, test_image):
    done = test_image(alpine)
    assert done.status == 1, done.stdout
    assert "its init is OpenRC, and a container is booted by systemd only" in done.last_line


@pytest.mark.long
@pytest.mark.both_machines
@pytest.mark.xdist_group("plain dib")
def test_plain_dib_image_reaches_its_stages(networked, machine, test_image, nothing_left):
    assert_reaches_its_stages(test_image(networked), grows=machine == "qemu")


@pytest.mark.long
@pytest.mark.xdist_group("plain dib")
def test_plain_dib_image_with_a_config_drive_reaches_its_stages(
    networked, test_image, nothing_left
):
    done = test_image(networked, "--datasource", "config-drive")
    assert_reaches_its_stages(done, grows=False)


def assert_reaches_its_stages(done, *, grows: bool) -> None:
    assert done.status == 0, done.stdout
    assert [each["stage"] for each in done.verdict["stages"]] == [*BOOT, *ASKED]
    assert unreached(done.verdict) == ([] if grows else ["root file system grown"])
    assert "Heat" not in done.stdout


@pytest.mark.long
@pytest.mark.xdist_group("plain dib")
def test_plain_dib_image_on_xfs_reaches_its_stages(on_xfs, test_image, nothing_left):
    done = test_image(on_xfs)
    assert done.status == 0, done.stdout


@pytest.mark.long
@pytest.mark.both_machines
@pytest.mark.xdist_group("plain dib")
def test_plain_dib_image_without_a_network_fails_at_its_network(plain, test_image):
    """bookworm's systemd-networkd is installed by dib, and not enabled."""
    done = test_image(plain, "--patience", "45")
    assert done.status == 1, done.stdout
    assert "network up" in done.stdout.splitlines()[-1]
    assert "systemd-networkd" in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("kind", ["vmdk", "vhdx", "vdi"])
def test_image_in_another_format_passes(bookworm, test_image, tmp_path, nothing_left, kind):
    converted = tmp_path / f"web.{kind}"
    subprocess.run(["qemu-img", "convert", "-O", kind, bookworm, converted], check=True)
    done = test_image(converted)
    assert (done.status, done.last_line) == (0, "PASSED"), done.stdout
