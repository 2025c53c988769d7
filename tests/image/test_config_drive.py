"""Config drives, read back with other tools than those that wrote them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hotplate.cloud.nova.compute import ServerSpec
from hotplate.errors import HostError
from hotplate.image import config_drive
from hotplate.testbed.maker import nocloud

TREE = {
    "openstack/latest/meta_data.json": b'{"uuid": "1"}',
    "openstack/latest/user_data": b"#!/bin/sh\n" * 500,
    "openstack/content/0000": b"",
    "ec2/latest/meta-data.json": bytes(range(256)),
}


def value(path: Path, tag: str) -> str:
    command = ["blkid", "-p", "-o", "value", "-s", tag, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_nocloud_drive_has_the_key_pair_of_the_server():
    """``DataSource.get_public_ssh_keys()`` of cloud-init reads "public-keys" of the metadata."""
    tree = nocloud(ServerSpec("1", "web", public_keys={"mine": "ssh-rsa AAAA me"}), {})
    assert json.loads(tree["meta-data"])["public-keys"] == ["ssh-rsa AAAA me"]


@pytest.mark.tool("xorriso")
@pytest.mark.parametrize("label", ["config-2", "cidata"])
def test_iso9660_drive_is_read_back(tmp_path: Path, label: str):
    drive = config_drive.make(TREE, tmp_path / "sub" / "drive.iso", label=label)
    assert drive.stat().st_mode & 0o777 == 0o600
    assert value(drive, "TYPE") == "iso9660"
    assert value(drive, "LABEL") == label
    out = tmp_path / "out"
    command = ["xorriso", "-osirrox", "on", "-indev", drive, "-extract", "/", out]
    subprocess.run(command, check=True, capture_output=True)
    assert read_back(out) == TREE


@pytest.mark.tool("mcopy")
def test_vfat_drive_is_read_back(tmp_path: Path):
    drive = config_drive.make(TREE, tmp_path / "drive.img", fs="vfat")
    assert drive.stat().st_mode & 0o777 == 0o600
    assert value(drive, "TYPE") == "vfat"
    assert value(drive, "LABEL").lower() == "config-2"
    for name, content in TREE.items():
        done = subprocess.run(["mtype", "-i", drive, f"::/{name}"], capture_output=True, check=True)
        assert done.stdout == content


@pytest.mark.parametrize("fs", ["iso9660", "vfat"])
def test_empty_tree_makes_a_drive(tmp_path: Path, fs: str):
    assert config_drive.make({}, tmp_path / "drive", fs=fs).stat().st_size > 0


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "a/../../b", ""])
def test_path_that_leaves_the_drive_is_refused(tmp_path: Path, name: str):
    with pytest.raises(ValueError, match="not a path"):
        config_drive.make({name: b""}, tmp_path / "drive.iso")
    assert list(tmp_path.iterdir()) == []


def test_unknown_format_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="ntfs"):
        config_drive.make({}, tmp_path / "drive", fs="ntfs")


def test_failed_write_leaves_nothing(tmp_path: Path):
    (tmp_path / "drive.iso").mkdir()
    with pytest.raises(HostError, match="could not be written"):
        config_drive.make(TREE, tmp_path / "drive.iso")
    assert [path.name for path in tmp_path.iterdir()] == ["drive.iso"]


def read_back(root: Path) -> dict[str, bytes]:
    files = (file for file in root.rglob("*") if file.is_file())
    return {str(file.relative_to(root)): file.read_bytes() for file in files}
