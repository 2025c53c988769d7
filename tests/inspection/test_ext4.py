"""Files are read as they were written, on any kind of ext, and no damage crashes the reader."""

from __future__ import annotations

import random
import stat
import subprocess
from pathlib import Path

import pytest

from hotplate.errors import ImageError
from hotplate.inspection.disk import Disk
from hotplate.inspection.ext4 import Ext4
from hotplate.inspection.tree import Tree

KINDS = {
    "ext2": ["-t", "ext2", "-b", "1024"],
    "ext3": ["-t", "ext3", "-b", "1024"],
    "ext4": ["-t", "ext4"],
    "ext4-1k": ["-t", "ext4", "-b", "1024", "-I", "128"],
    "ext4-32bit": ["-t", "ext4", "-O", "^64bit,^metadata_csum"],
    "no-kinds": ["-t", "ext2", "-O", "^filetype"],
}


def opened(path: Path) -> Tree:
    data = path.read_bytes()
    return Tree(Ext4(Disk(lambda at, length: data[at : at + length], len(data), path.name)))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Files of all sizes, holes, links, and a directory that fills many blocks."""
    root = tmp_path / "files"
    (root / "deep/er").mkdir(parents=True)
    (root / "many").mkdir()
    for number in range(700):
        (root / "many" / f"a name that takes some room {number}").touch()
    (root / "empty").touch()
    (root / "small").write_text("small\n")
    (root / "large").write_bytes(random.Random(1).randbytes(700_000))
    with (root / "holes").open("wb") as stream:
        stream.seek(300_000)
        stream.write(b"end")
    (root / "deep/er/ünï").write_text("x")
    (root / "short").symlink_to("/deep/er")
    (root / "long").symlink_to("deep/" + "er/../" * 30 + "er")
    (root / "outside").symlink_to("/../../../../small")
    (root / "circle").symlink_to("circle")
    (root / "deep/tool").write_text("#!/bin/sh\n")
    (root / "deep/tool").chmod(0o755)
    return root


@pytest.mark.parametrize("kind", KINDS)
def test_files_are_read_as_written(files, tmp_path, make_file_system, kind):
    tree = opened(make_file_system(files, tmp_path / "fs", *KINDS[kind], size="8M"))
    listed = {path: inode for path, inode in tree.walk() if path != "/lost+found"}
    assert sorted(listed) == sorted(f"/{path.relative_to(files)}" for path in files.rglob("*"))
    for name, inode in listed.items():
        status = (files / name[1:]).lstat()
        assert stat.S_IFMT(inode.mode) == stat.S_IFMT(status.st_mode), name
        assert (inode.uid, inode.gid) == (status.st_uid, status.st_gid)
        assert inode.modified == int(status.st_mtime)
        if inode.is_file:
            assert tree.read(name) == (files / name[1:]).read_bytes(), name
        if inode.is_link:
            assert tree.target(name) == str((files / name[1:]).readlink())


def test_links_stay_in_the_image(files, tmp_path, make_file_system):
    tree = opened(make_file_system(files, tmp_path / "fs", size="8M"))
    assert tree.text("/outside") == "small\n"
    assert tree.real_path("/outside") == "/small"
    assert tree.names("/short") == ["ünï"]
    assert tree.text("/long/ünï") == "x"
    assert tree.find("/circle") is None
    assert tree.is_link("/circle")
    assert tree.find("/small/nothing") is None
    assert tree.is_program("/deep/tool")
    assert not tree.is_program("/small")
    assert tree.text("/deep/../../../small") == "small\n"


def test_part_of_a_large_file_is_read(files, tmp_path, make_file_system):
    tree = opened(make_file_system(files, tmp_path / "fs", size="8M"))
    assert tree.read("/large", 5000) == (files / "large").read_bytes()[:5000]


def test_unsupported_feature_is_reported(files, tmp_path, make_file_system):
    path = make_file_system(files, tmp_path / "fs", "-O", "inline_data", size="8M")
    path = path.rename(tmp_path / "a file system")
    with pytest.raises(ImageError, match="features that are not known here") as raised:
        opened(path)
    assert "guestfish --ro -a 'a file system' -i" in raised.value.hint


def test_damaged_metadata_is_an_error_message(files, tmp_path, make_file_system):
    """Bytes of the metadata are changed; each read then ends and is bounded."""
    data = make_file_system(files, tmp_path / "fs", "-b", "1024", size="8M").read_bytes()
    used = [at for at in range(0, len(data), 512) if any(data[at : at + 512])][:600]
    chance = random.Random(7)
    refused = 0
    for _ in range(30):
        broken = bytearray(data)
        for _ in range(100):
            at = chance.choice(used) + chance.randrange(512)
            broken[at] = chance.choice((0, 1, 0x7F, 0xFF, chance.randrange(256)))
        disk = Disk(lambda at, length, b=bytes(broken): b[at : at + length], len(data), "broken")
        try:
            tree = Tree(Ext4(disk))
            for number, (path, _) in enumerate(tree.walk()):
                tree.read(path)
                if number > 50:
                    break
        except ImageError:
            refused += 1
    assert refused > 3


def test_loop_of_extents_ends(files, tmp_path, make_file_system):
    path = make_file_system(files, tmp_path / "fs", size="8M")
    tree = opened(path)
    inode = tree.find("/large")
    assert inode is not None
    system = tree.file_system
    # An inner node, four of which point to a block that points to itself.
    head = b"\x0a\xf3\x04\x00\x04\x00\x05\x00\0\0\0\0"
    blocks = head + (bytes(4) + b"\x05\0\0\0\0\0\0\0") * 4
    circular = type(inode)(**{**vars(inode), "blocks": blocks})
    with pytest.raises(ImageError, match="extents of inode"):
        system.read(circular, 1 << 20)


def test_directory_matches_debugfs(good, tmp_path, make_file_system):
    """debugfs is e2fsprogs' own reader."""
    path = make_file_system(good, tmp_path / "fs")
    tree = opened(path)
    command = ["/sbin/debugfs", "-R", "ls -p /etc", str(path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = [line.split("/")[5] for line in printed.splitlines() if line.count("/") > 5]
    assert sorted({*names} - {".", ".."}) == tree.names("/etc")
