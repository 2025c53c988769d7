"""The volumes of LVM2, made by its own tools, without the device mapper."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tiny_disk import MIB, run

from hotplate.inspection import lvm
from hotplate.inspection.disk import Disk
from hotplate.inspection.inspection import inspected
from hotplate.inspection.partitions import Partition, partitions

MakeGroup = Callable[..., Path]

pytestmark = [pytest.mark.root, pytest.mark.tool("lvm"), pytest.mark.tool("losetup")]


@contextmanager
def attached(path: Path, offset: int = 0) -> Iterator[str]:
    device = run("losetup", "-f", "--show", "-o", offset, path)
    try:
        yield device
    finally:
        run("losetup", "-d", device)


@pytest.fixture
def make_group(tmp_path: Path) -> MakeGroup:
    """Return a function that makes a disk with a volume group, from the words of LVM's commands."""

    def make(*commands: str, disks: int = 1, mib: int = 64) -> Path:
        paths = [tmp_path / f"disk{number}.raw" for number in range(disks)]
        with_devices(commands, paths, mib)
        return paths[0]

    return make


def with_devices(commands: tuple[str, ...], paths: list[Path], mib: int) -> None:
    for path in paths:
        path.touch()
        os.truncate(path, mib * MIB)
    # Nothing of the host is read or changed: only these devices, and no archive of the metadata.
    config = "activation { udev_sync=0 udev_rules=0 } backup { backup=0 archive=0 }"
    if len(paths) == 1:
        with attached(paths[0]) as device:
            group([device], commands, config)
    else:
        with attached(paths[0]) as first, attached(paths[1]) as second:
            group([first, second], commands, config)


def group(devices: list[str], commands: tuple[str, ...], config: str) -> None:
    options = ["--driverloaded", "n", "--config", config, "--devices", ",".join(devices)]
    run("lvm", "vgcreate", *options, "vg", *devices)
    for command in commands:
        verb, *words = command.format(*devices).split()
        offline = ["-an", "-Zn", "-Wn"] if verb == "lvcreate" else []
        run("lvm", verb, *options, *offline, *words)


def opened(path: Path) -> Disk:
    data = path.read_bytes()
    return Disk(lambda at, length: data[at : at + length], len(data), path.name)


def volumes(path: Path) -> list[Partition]:
    return [each for each in partitions(opened(path)) if each.volume]


def place(path: Path, volume: Partition, content: bytes) -> None:
    """Write the contents of a volume."""
    at = 0
    with path.open("r+b") as stream:
        for start, length in volume.pieces:
            stream.seek(start)
            stream.write(content[at : at + length])
            at += length


def test_extended_volume_is_put_together(good, make_group, make_file_system, tmp_path):
    """The second volume lies between the two pieces of the first one."""
    path = make_group(
        "lvcreate -l 2 -n root vg", "lvcreate -l 1 -n var vg", "lvextend -l +2 vg/root"
    )
    root, var = volumes(path)
    assert [each.volume for each in (root, var)] == ["vg/root", "vg/var"]
    assert [length for _, length in root.pieces] == [8 * MIB, 8 * MIB]
    assert (var.size, len(var.pieces)) == (4 * MIB, 1)
    content = make_file_system(good, tmp_path / "system", size="16M").read_bytes()
    place(path, root, content)
    assert root.on(opened(path)).read(0, len(content)) == content
    with inspected(path) as inspection:
        assert inspection.root is not None
        assert (inspection.root.volume, inspection.root.file_system) == ("vg/root", "ext4")
        assert inspection.contents is not None
        assert inspection.contents.distribution == "Debian GNU/Linux 12 (bookworm)"


def test_striped_volume_is_refused(make_group: MakeGroup):
    (volume,) = volumes(make_group("lvcreate -i 2 -l 2 -n root vg", disks=2))
    assert volume.refused == "striped, and only linear volumes are read"


@pytest.mark.parametrize("kind", ["thin", "raid1", "mirror"])
def test_volume_of_another_kind_is_refused(make_group: MakeGroup, kind: str):
    """LVM makes none of them without the device mapper."""
    path = make_group("lvcreate -l 2 -n root vg")
    data = path.read_bytes()
    assert b'type = "striped"' in data
    path.write_bytes(data.replace(b'"striped"', f'"{kind}"'.ljust(9).encode()))
    (volume,) = volumes(path)
    assert volume.refused == f"of the kind {kind}, and only linear volumes are read"


def test_volume_on_a_second_disk_is_refused(make_group: MakeGroup):
    path = make_group("lvcreate -l 2 -n root vg {1}", disks=2)
    with inspected(path) as inspection:
        assert inspection.contents is None
        assert inspection.unread == (
            f'the volume "vg/root" of "{path}" is on another disk too, which is not part of the '
            "image"
        )


def test_damaged_metadata_make_no_volume(make_group: MakeGroup):
    """Each byte of the metadata in turn is another one."""
    path = make_group("lvcreate -l 2 -n root vg")
    data = bytearray(path.read_bytes()[:MIB])
    for at in range(512, 512 + 8192, 7):
        data[at] ^= 0x5A
        disk = Disk(lambda start, size: bytes(data[start : start + size]), 64 * MIB, "disk")
        listed = lvm.volumes(disk, [0])
        data[at] ^= 0x5A
        for each in listed:
            assert each.refused or each.parts


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        (rb'status = \["READ", "WRITE", "VISIBLE"\]', b"status = 5"),
        (rb'(?<=pv0 \{\n)id = "[^"]*"', b"id = 5"),
        (rb"extent_size = \d+", b'extent_size="a"'),
    ],
)
def test_metadata_of_another_type_make_no_volume(make_group: MakeGroup, written, instead):
    path = make_group("lvcreate -l 2 -n root vg")
    data, count = re.subn(written, lambda old: instead.ljust(len(old[0])), path.read_bytes()[:MIB])
    assert count
    disk = Disk(lambda start, size: data[start : start + size], 64 * MIB, "disk")
    assert all(each.refused for each in lvm.volumes(disk, [0]))


@pytest.mark.parametrize(
    "text", ["}", "vg {", "vg = ", "vg [", "a " + "b { " * 100, '"', "a = { b", "a { b ; c }"]
)
def test_malformed_metadata_are_refused(text: str):
    try:
        lvm.parsed(text)
    except ValueError:
        return
    assert text == "vg = "
