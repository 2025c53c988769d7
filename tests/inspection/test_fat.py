"""The reader of FAT, against file systems made by dosfstools and mtools."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_disk import SYSTEM, fat

from hotplate.errors import ImageError
from hotplate.inspection.disk import Disk
from hotplate.inspection.fat import Fat
from hotplate.inspection.tree import Tree

LOADER = "EFI/BOOT/BOOTX64.EFI"
LONG = "vmlinuz-6.12.118+deb13-cloud-amd64"
#: MiB, for which mkfs.vfat uses as many bits.
SIZES = {12: 2, 16: 64, 32: 260}


def make(path: Path, bits: int) -> Path:
    for tool in ("mkfs.vfat", "mcopy"):
        if shutil.which(tool, path=SYSTEM["PATH"]) is None:
            pytest.skip(f"needs {tool} on this host")
    source = path.with_suffix(".source")
    (source / LOADER).parent.mkdir(parents=True)
    (source / LOADER).write_bytes(bytes(range(256)) * 1000)
    (source / LONG).write_text("kernel")
    (source / "empty").touch()
    for number in range(100):
        (source / "EFI" / f"a-file-with-a-long-name-{number}").write_text(str(number))
    return fat(source, path, "-F", str(bits), "-n", "ESP", mib=SIZES[bits])


def opened(data: bytes) -> Tree:
    return Tree(Fat(Disk(lambda at, length: data[at : at + length], len(data), "esp")))


@pytest.mark.parametrize("bits", SIZES)
def test_names_sizes_and_contents_are_read(tmp_path: Path, bits: int):
    path = make(tmp_path / "esp", bits)
    with path.open("rb") as file:
        # The file is sparse, and most of it is never read.
        read = lambda at, length: os.pread(file.fileno(), length, at)  # noqa: E731
        check(Tree(Fat(Disk(read, path.stat().st_size, "esp"))))


def check(tree: Tree) -> None:
    assert sum(inode.is_file for _, inode in tree.walk()) == 103
    assert tree.read(f"/{LOADER}") == bytes(range(256)) * 1000
    assert tree.read(f"/{LOADER}", 300) == bytes(range(256)) + bytes(range(44))
    assert tree.read(f"/{LONG}") == b"kernel"
    assert tree.exists("/empty")
    assert tree.read("/empty", 10) == b""
    assert tree.read("/EFI/a-file-with-a-long-name-99", 10) == b"99"


def test_other_file_system_is_refused():
    for data in (b"", bytes(512), b"\xff" * 1024):
        with pytest.raises(ImageError, match="the FAT file system of"):
            opened(data)


def test_file_system_with_too_many_files_is_refused(esp: bytes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hotplate.inspection.fat.MAX_FILES", 50)
    with pytest.raises(ImageError, match="has too many files"):
        list(opened(esp).walk())


@pytest.fixture(scope="module")
def esp(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make(tmp_path_factory.mktemp("fat") / "esp", 12).read_bytes()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 255)), max_size=30))
def test_damaged_fat_is_read_or_refused_and_ends(esp: bytes, damage: list[tuple[int, int]]):
    data = bytearray(esp)
    for at, byte in damage:
        data[at] = byte
    try:
        tree = opened(bytes(data))
        for path, _ in tree.walk():
            tree.read(path, 1 << 20)
    except ImageError:
        pass
