"""An image from outside: its manifest, its firmware, and unreadable parts."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from tiny_disk import MIB, fat, partitioned

from hotplate.errors import ImageError
from hotplate.inspection.compare import snapshot
from hotplate.inspection.inspection import Manifest, inspected


def leave_manifest(path: Path, sha256: str) -> None:
    document = {
        "sha256": sha256,
        "built": "2026-11-23T13:19:20+00:00",
        "hotplate": "0.1.0",
        "elements": {"heat-config-script": "ab"},
    }
    path.with_name(f"{path.stem}.manifest.json").write_text(json.dumps(document))


def test_manifest_is_used_when_it_is_the_images_own(good, make_disk):
    path = make_disk(good)
    with inspected(path) as inspection:
        assert (inspection.manifest, inspection.elements) == (Manifest.NONE, ())
    leave_manifest(path, hashlib.sha256(path.read_bytes()).hexdigest())
    with inspected(path) as inspection:
        assert inspection.manifest is Manifest.FITS
        assert inspection.elements == ("heat-config-script",)
        assert inspection.built["hotplate"] == "0.1.0"


def test_manifest_of_another_file_is_ignored(good, make_disk):
    path = make_disk(good)
    leave_manifest(path, "0" * 64)
    with inspected(path) as inspection:
        assert (inspection.manifest, inspection.elements) == (Manifest.OTHER, ())
        assert inspection.built == {}


def test_manifest_in_a_later_format_is_ignored(good, make_disk):
    path = make_disk(good)
    leave_manifest(path, hashlib.sha256(path.read_bytes()).hexdigest())
    file = path.with_name(f"{path.stem}.manifest.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}))
    with inspected(path) as inspection:
        assert (inspection.manifest, inspection.built) == (Manifest.UNREADABLE, {})


def test_elements_are_read_from_the_image_without_a_manifest(good, write, make_disk):
    write(good, "usr/share/heat-config/manifest.json", '{"elements": ["vm", "heat-config"]}')
    with inspected(make_disk(good)) as inspection:
        assert inspection.elements == ("vm", "heat-config")


def test_root_file_system_is_found_behind_others(good, tmp_path, make_file_system):
    system = make_file_system(good, tmp_path / "system")
    (tmp_path / "boot").mkdir()
    boot = make_file_system(tmp_path / "boot", tmp_path / "boot-system", size="2M")
    path = partitioned(tmp_path / "gpt.raw", ("U", bytes(2 * MIB)), ("L", boot), ("L", system))
    with inspected(path) as inspection:
        assert inspection.firmware == ["UEFI"]
        assert inspection.root == inspection.partitions[2]
        assert [each.purpose for each in inspection.partitions] == ["efi system", "data", "data"]
        assert inspection.findings == ()


@pytest.mark.tool("mkfs.vfat")
@pytest.mark.tool("mcopy")
@pytest.mark.tool("sfdisk")
@pytest.mark.parametrize(
    ("name", "loader"),
    [
        ("loader/loader.conf", "systemd-boot"),
        ("EFI/debian/grubx64.efi", "GRUB"),
        ("EFI/BOOT/BOOTX64.EFI", None),
    ],
)
def test_boot_loader_in_the_efi_system_partition_is_found(
    good, tmp_path, write, make_file_system, name: str, loader: str | None
):
    (good / "boot/grub/grub.cfg").unlink()
    write(tmp_path / "files", name, "x")
    esp = fat(tmp_path / "files", tmp_path / "esp")
    system = make_file_system(good, tmp_path / "system")
    path = partitioned(tmp_path / "gpt.raw", ("U", esp), ("L", system))
    with inspected(path) as inspection:
        assert inspection.boot_loaders == ([loader] if loader else [])
        assert inspection.efi_files == [f"/{name}"]
        digest = hashlib.sha256(b"x").hexdigest()[:16]
        assert snapshot(inspection).facts[f"EFI /{name}"] == f"1 bytes, SHA-256 {digest}"


@pytest.mark.parametrize("kind", ["vmdk", "vhdx", "vdi"])
def test_image_of_another_hypervisor_is_read(good, make_disk, kind: str):
    raw = make_disk(good)
    path = raw.with_suffix(f".{kind}")
    subprocess.run(["qemu-img", "convert", "-q", "-O", kind, raw, path], check=True)
    with inspected(path) as inspection, inspected(raw) as wanted:
        assert inspection.file.format == kind
        assert snapshot(inspection).files == snapshot(wanted).files


def test_unread_file_system_has_a_hint(tmp_path):
    path = tmp_path / "xfs.raw"
    path.write_bytes(b"XFSB" + bytes(1 << 20))
    with inspected(path) as inspection:
        assert inspection.contents is None
        assert inspection.partitions[0].file_system == "xfs"
        assert "guestfish --ro -a" in inspection.unread
        assert inspection.findings == ()


def test_disk_without_a_system_is_reported(tmp_path, make_disk):
    (tmp_path / "empty").mkdir()
    with inspected(make_disk(tmp_path / "empty")) as inspection:
        assert inspection.contents is None
        assert "there is no system in it" in inspection.unread


def test_partition_without_a_known_file_system_is_named(tmp_path):
    path = partitioned(tmp_path / "gpt.raw", ("L", bytes(MIB)))
    with pytest.raises(ImageError, match="but no partition with a file system"), inspected(path):
        pass


def test_disk_without_its_end_is_refused(good, make_disk):
    path = make_disk(good)
    os.truncate(path, path.stat().st_size - 4096)
    with (
        pytest.raises(ImageError, match=r"is truncated: .*, and partition 1 ends"),
        inspected(path),
    ):
        pass


def test_file_that_is_no_image_is_refused(tmp_path):
    path = tmp_path / "text.raw"
    path.write_text("# not an image\n" * 1000)
    with pytest.raises(ImageError, match="is not an image"), inspected(path):
        pass
