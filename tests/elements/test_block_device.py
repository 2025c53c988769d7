"""Partitioned disks, made with offset loop devices by a plain disk-image-create."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import completed, program

from hotplate.image.offset_partitioning import partition_extents

ROOT = Path(__file__).parents[2]

HOOK = """#!/bin/bash
set -eu
sudo mkdir -p "$TARGET_ROOT"/{dev/pts,etc,proc,root,sys,tmp,var/log}
echo was here | sudo tee "$TARGET_ROOT/etc/witness" > /dev/null
"""


def test_extents_are_in_bytes():
    table = """warning: something
    {"partitiontable": {"sectorsize": 4096, "partitions": [
        {"node": "/dev/loop7p1", "start": 256, "size": 16},
        {"node": "/dev/loop7p15", "start": 512, "size": 1024}]}}
    more noise"""
    assert partition_extents(table) == {
        1: (256 * 4096, 16 * 4096),
        15: (512 * 4096, 1024 * 4096),
    }


@pytest.mark.parametrize("table", ["", "sfdisk: failed", "{}", '{"partitiontable": {}}', "{]"])
def test_missing_table_is_an_error_of_the_block_device_layer(table: str):
    from diskimage_builder.block_device.exception import BlockDeviceSetupException

    with pytest.raises(BlockDeviceSetupException):
        partition_extents(table)


def loops(directory: Path) -> list[str]:
    """Return the files in a directory that are behind loop devices; those of others vary."""
    files = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            files.append(path.read_text().strip())
    return [each for each in files if each.startswith(f"{directory}/")]


def build(directory: Path, element: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run disk-image-create as a user would, on an operating system that is one directory."""
    fake = directory / "elements" / "fake-os"
    program(fake / "root.d" / "10-fake-os", HOOK)
    (fake / "element-provides").write_text("operating-system\n")
    tmp = directory / "tmp"
    tmp.mkdir()
    given = {
        "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(directory),
        "TMPDIR": str(tmp),
        "ELEMENTS_PATH": f"{ROOT}/elements:{fake.parent}",
        "DIB_IMAGE_SIZE": "1",
        "DIB_JOURNAL_SIZE": "4",
    }
    return completed(
        ["disk-image-create", "-n", "--no-tmpfs", "-t", "raw", "-o", "disk", "fake-os", element],
        cwd=directory,
        env=given | environment,
        timeout=120,
    )


def table_of(disk: Path) -> dict:
    done = completed(["sfdisk", "--json", disk], check=True)
    return json.loads(done.stdout)["partitiontable"]


def root_file(disk: Path, offset: int, name: str) -> str:
    """Read a file of an ext4 file system inside a disk, without mounting it."""
    command = ["debugfs", "-R", f"cat {name}", f"{disk}?offset={offset}"]
    return completed(command, check=True).stdout


@pytest.mark.parametrize(
    ("kind", "label", "partitions"), [("mbr", "dos", 1), ("gpt", "gpt", 2)], ids=["mbr", "gpt"]
)
class TestBuilds:
    pytestmark = [pytest.mark.root, pytest.mark.builds, pytest.mark.tool("sfdisk")]

    def test_root_file_system_is_in_its_partition(
        self, tmp_path: Path, kind: str, label: str, partitions: int
    ):
        done = build(tmp_path, f"block-device-offset-{kind}")
        assert done.returncode == 0, done.stdout[-3000:]
        assert loops(tmp_path) == []
        table = table_of(tmp_path / "disk.raw")
        assert table["label"] == label
        assert len(table["partitions"]) == partitions
        root = table["partitions"][-1]
        assert root["start"] % 2048 == 0
        offset = root["start"] * 512
        assert root_file(tmp_path / "disk.raw", offset, "/etc/witness") == "was here\n"
        assert "LABEL=cloudimg-rootfs / ext4" in root_file(
            tmp_path / "disk.raw", offset, "/etc/fstab"
        )

    def test_host_with_an_unresolvable_name_can_build(
        self, tmp_path: Path, kind: str, label: str, partitions: int
    ):
        """sudo warns of it, and diskimage-builder takes the warning for output of commands."""
        warning = "sudo: unable to resolve host vm: Name or service not known"
        text = f'echo "{warning}" >&2\nexec {shutil.which("sudo")} "$@"'
        sudo = program(tmp_path / "bin" / "sudo", text)
        path = f"{sudo.parent}:{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
        done = build(tmp_path, f"block-device-offset-{kind}", PATH=path)
        assert done.returncode == 0, done.stdout[-3000:]
        assert warning in done.stdout
        assert loops(tmp_path) == []
        assert len(table_of(tmp_path / "disk.raw")["partitions"]) == partitions

    def test_failed_creation_leaves_no_loop_device_and_no_mount(
        self, tmp_path: Path, kind: str, label: str, partitions: int
    ):
        # The first one is mounted when the second file system cannot be made.
        config = ROOT / "elements" / f"block-device-offset-{kind}" / "block-device-default.yaml"
        broken = config.read_text().replace("size: 100%", "size: 60%")
        broken += """\
      - name: broken
        size: 100%
        mkfs:
          type: no-such-file-system
          mount:
            mount_point: /var
"""
        done = build(tmp_path, f"block-device-offset-{kind}", DIB_BLOCK_DEVICE_CONFIG=broken)
        assert done.returncode != 0
        assert "no-such-file-system" in done.stdout
        assert loops(tmp_path) == []
        assert str(tmp_path) not in Path("/proc/mounts").read_text()


@pytest.mark.parametrize("how", ["installed", "checkout"])
def test_diskimage_builder_finds_the_plug_in(tmp_path: Path, how: str):
    """From an installed hotplate, and from a checkout by PYTHONPATH alone."""
    python = [sys.executable, "-c"]
    environment = {}
    if how == "checkout":
        # -S leaves out site-packages, and with it the installed hotplate.
        import diskimage_builder
        import stevedore

        bare = tmp_path / "site"
        bare.mkdir()
        site = Path(stevedore.__file__).parents[1]
        for entry in site.iterdir():
            if "hotplate" not in entry.name and entry.suffix != ".pth":
                (bare / entry.name).symlink_to(entry)
        assert Path(diskimage_builder.__file__).is_relative_to(site)
        python = [sys.executable, "-S", "-c"]
        environment = {"PYTHONPATH": f"{ROOT}:{ROOT}/tools/dib-plugin:{bare}"}
    program = (
        "from diskimage_builder.block_device.config import _extensions\n"
        "print(_extensions['offset_partitioning'].plugin.__name__)"
    )
    done = completed([*python, program], env=environment)
    assert done.stdout == "OffsetPartitioning\n", done.stderr
