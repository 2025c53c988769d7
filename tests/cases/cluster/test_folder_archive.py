"""The returned folder of a run."""

from __future__ import annotations

import io
import tarfile

import pytest

from hotplate.cases.cluster import folder_archive


def test_folder_is_returned_unchanged(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "servers" / "web").mkdir(parents=True)
    (there / "servers" / "web" / "console.log").write_bytes(b"booted\n")
    (there / "qemu.sh").write_text("#!/bin/sh\n")
    (there / "qemu.sh").chmod(0o700)
    (there / "verdict.json").write_text("{}")
    (there / "verdict.json").chmod(0o600)
    here.mkdir()
    folder_archive.unpack(folder_archive.pack(there), here)
    files = {str(each.relative_to(here)) for each in here.rglob("*") if each.is_file()}
    assert files == {"servers/web/console.log", "qemu.sh", "verdict.json"}
    assert (here / "servers" / "web" / "console.log").read_bytes() == b"booted\n"
    assert (here / "qemu.sh").stat().st_mode & 0o777 == 0o700
    assert (here / "verdict.json").stat().st_mode & 0o777 == 0o600


def test_file_too_large_is_named(tmp_path):
    (tmp_path / "small").write_bytes(b"1" * 10)
    (tmp_path / "large").write_bytes(b"1" * 100)
    data = folder_archive.pack(tmp_path, most=50)
    here = tmp_path / "here"
    here.mkdir()
    folder_archive.unpack(data, here)
    assert sorted(each.name for each in here.iterdir()) == ["left-out.txt", "small"]
    assert (here / "left-out.txt").read_text() == "large: 100 bytes\n"


def test_path_outside_the_folder_is_refused(tmp_path):
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../out"))
    folder = tmp_path / "in"
    folder.mkdir()
    with pytest.raises(tarfile.TarError):
        folder_archive.unpack(target.getvalue(), folder)
    assert not (tmp_path / "out").exists()
