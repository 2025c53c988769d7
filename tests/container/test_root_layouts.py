"""The root file system of an image: found, unpacked, mounted, and never written to."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from small_disk import small_disk
from tiny_container import SYSTEM, attached, containers, make_ext4
from tiny_disk import partitioned

from hotplate.container.root import Root, open_root
from hotplate.errors import HostError
from hotplate.image import qcow2
from hotplate.image.inspect import Image
from hotplate.image.plan import Layout
from hotplate.inspection import raw_disk as disks
from hotplate.inspection.raw_disk import raw_disk

MIB = 1 << 20
#: GPT's types of partitions: Linux, the EFI system partition, GRUB's second stage, LVM.
LINUX = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
EFI = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
BIOS_BOOT = "21686148-6449-6E6F-744E-656564454649"
NO_SYSTEM = bytes(4 * MIB)


def run(*words: object, stdin: str = "") -> None:
    command = [str(word) for word in words]
    subprocess.run(command, input=stdin, text=True, check=True, capture_output=True, env=SYSTEM)


def image_of(path: Path, **options: object) -> Image:
    """Return an image without looking at its boot code."""
    kind = "qcow2" if path.suffix == ".qcow2" else "raw"
    links = qcow2.chain(path, allow_backing=True)
    size = qcow2.read_header(path).virtual_size if kind == "qcow2" else path.stat().st_size
    made = Image(path, kind, size, Layout.DISK, chain=links)
    return replace(made, **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def system(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the tiny root as ext4, with a journal."""
    return make_ext4(tree, tmp_path_factory.mktemp("system") / "system.ext4")


@pytest.fixture(scope="module")
def other_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with an ext4 file system that is no root, as one for /boot."""
    folder = tmp_path_factory.mktemp("boot")
    (folder / "tree/grub").mkdir(parents=True)
    return make_ext4(folder / "tree", folder / "boot.ext4", mib=8)


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    yield
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before


def boots(root: Root, place: Path) -> None:
    """Boot a root twice at once, and write to it."""
    with containers(root, place) as make:
        made = [make(name=name, interfaces=1) for name in ("one", "two")]
        shells = [attached(each.machine) for each in made]
        for shell in shells:
            assert shell.run("cat /etc/os-release").text == "ID=tiny"
            shell.run("echo x >/etc/new; rm /etc/passwd; chmod 700 /bin/busybox; sync").check()
            assert shell.run("stat -c '%u %a' /etc/new /root /bin/busybox").text.split() == [
                *("0", "644"),
                *("0", "755"),
                *("0", "700"),
            ]


@pytest.mark.parametrize("layout", ["bare", "mbr", "efi first", "boot first", "all of them"])
@pytest.mark.tool("sfdisk")
@pytest.mark.tool("systemd-nspawn")
@pytest.mark.root
def test_root_is_found_on_each_layout_boots_and_stays_unchanged(
    system: Path, other_files: Path, tmp_path: Path, layout: str
) -> None:
    path = tmp_path / "disk.raw"
    if layout == "bare":
        path.write_bytes(system.read_bytes())
    elif layout == "mbr":
        partitioned(path, ("83", NO_SYSTEM), ("83", system), label="dos")
    elif layout == "efi first":
        partitioned(path, (EFI, other_files), (LINUX, system))
    elif layout == "boot first":
        partitioned(path, (LINUX, other_files), (LINUX, system))
    else:
        parts = [(BIOS_BOOT, bytes(MIB)), (EFI, NO_SYSTEM), (LINUX, other_files), (LINUX, system)]
        partitioned(path, *parts)
    image = image_of(path)
    with unchanged(path), open_root(image, tmp_path / "cache") as root:
        assert (root.path, root.file_system, root.options) == (path, "ext4", "noload")
        assert root.size == system.stat().st_size
        with path.open("rb") as stream:
            assert os.pread(stream.fileno(), 2, root.offset + 1024 + 56) == b"\x53\xef"
        boots(root, tmp_path)
    assert not (tmp_path / "cache").exists()


#: Mounts a file system, makes a subvolume of btrfs if one is wanted, and copies a folder into it.
FILL = """
import fcntl, os, struct, subprocess, sys
file, point, tree, subvolume = sys.argv[1:]
subprocess.run(["mount", "-o", "loop", file, point], check=True)
if subvolume:
    # BTRFS_IOC_SUBVOL_CREATE and struct btrfs_ioctl_vol_args of Linux' btrfs.h.
    wanted = bytearray(struct.pack("q4088s", 0, subvolume.encode()))
    top = os.open(point, os.O_RDONLY)
    fcntl.ioctl(top, 0x5000940E, wanted)
    os.close(top)
subprocess.run(["cp", "-a", f"{tree}/.", f"{point}/{subvolume}"], check=True)
# The end of the namespace would unmount it, but later than this program ends.
subprocess.run(["umount", point], check=True)
"""


def populated(path: Path, tree: Path, subvolume: str = "") -> None:
    """Copy a folder into a file system.

    In a mount namespace of its own: any container that starts meanwhile would copy a mount of ours,
    and keep the file system mounted, which then still writes.
    """
    point = path.with_suffix(".mnt")
    point.mkdir()
    run("unshare", "--mount", sys.executable, "-c", FILL, path, point, tree, subvolume)


@pytest.mark.tool("mkfs.xfs")
@pytest.mark.tool("sfdisk")
@pytest.mark.tool("systemd-nspawn")
@pytest.mark.root
def test_xfs_is_booted_by_two_containers_at_once(tree: Path, tmp_path: Path) -> None:
    made = tmp_path / "system.xfs"
    with made.open("wb") as stream:
        stream.truncate(320 * MIB)
    run("mkfs.xfs", "-q", made)
    populated(made, tree)
    path = partitioned(tmp_path / "disk.raw", (EFI, NO_SYSTEM), (LINUX, made))
    with unchanged(path), open_root(image_of(path), tmp_path) as root:
        assert (root.offset, root.file_system) == (5 * MIB, "xfs")
        boots(root, tmp_path)


@pytest.mark.tool("mkfs.btrfs")
@pytest.mark.tool("systemd-nspawn")
@pytest.mark.root
@pytest.mark.parametrize("subvolume", ["", "root", "@"])
def test_btrfs_is_booted_from_its_subvolume(tree: Path, tmp_path: Path, subvolume: str) -> None:
    path = tmp_path / "disk.raw"
    with path.open("wb") as stream:
        stream.truncate(160 * MIB)
    run("mkfs.btrfs", "-q", path)
    populated(path, tree, subvolume)
    with unchanged(path), open_root(image_of(path), tmp_path) as root:
        assert root.file_system == "btrfs"
        boots(root, tmp_path)


# -- qcow2 ---------------------------------------------------------------------------------------


def to_qcow2(source: Path, target: Path) -> Path:
    run("qemu-img", "convert", "-q", "-c", "-O", "qcow2", source, target)
    return target


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A qcow2 image of 16 MiB, the last of which has contents."""
    content = tmp_path / "content.raw"
    with content.open("wb") as stream:
        stream.truncate(16 * MIB)
        stream.seek(15 * MIB)
        stream.write(b"contents" * 1000)
    return to_qcow2(content, tmp_path / "disk.qcow2")


@pytest.mark.tool("systemd-nspawn")
@pytest.mark.root
def test_unpacked_qcow2_boots(system: Path, tmp_path: Path) -> None:
    path = to_qcow2(system, tmp_path / "system.qcow2")
    with (
        unchanged(path),
        open_root(image_of(path), tmp_path / "cache") as root,
        unchanged(root.path),
    ):
        boots(root, tmp_path)


def test_backing_files_are_unpacked_too_with_any_name(packed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "with,comma and space"
    folder.mkdir()
    base = packed.rename(folder / "ba,se.qcow2")
    over = folder / "over,=.qcow2"
    run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", base.name, over)
    run("qemu-io", "-c", "write -P 7 1M 1M", "--image-opts", _options(over))
    with raw_disk(image_of(over), tmp_path / "cache") as path:
        whole = path.read_bytes()
    assert whole[MIB : 2 * MIB] == b"\7" * MIB
    assert whole[15 * MIB :].startswith(b"contentscontents")
    assert len(whole) == 16 * MIB


def _options(path: Path) -> str:
    return f"driver=qcow2,file.driver=file,file.filename={str(path).replace(',', ',,')}"


def test_changed_image_or_backing_file_is_unpacked_anew(packed: Path, tmp_path: Path) -> None:
    over, cache = tmp_path / "over.qcow2", tmp_path / "cache"
    run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", packed, over)
    seen = []
    for change in (None, over, packed):
        if change is not None:
            run("qemu-io", "-c", "write -P 7 1M 64k", change)
            # However coarse the file system's clock is.
            os.utime(change, ns=(1, 10**18 + len(seen)))
        with raw_disk(image_of(over), cache) as path:
            seen.append(path)
            assert (path.read_bytes()[MIB] == 7) == (change is not None)
    assert len({*seen}) == 3


UNPACK = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[1])
import test_root
from hotplate.inspection.raw_disk import raw_disk
image = test_root.image_of(pathlib.Path(sys.argv[2]))
with raw_disk(image, pathlib.Path(sys.argv[3])) as path:
    print(path, path.stat().st_ino, path.read_bytes().count(b"contents"), flush=True)
    sys.stdin.readline()
"""


def test_processes_at_once_share_one_disk(packed: Path, tmp_path: Path) -> None:
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent)])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", UNPACK, here, packed, tmp_path / "cache"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=here.parents[1],
            env={**os.environ, "PYTHONPATH": paths},
        )
        for _ in range(3)
    ]
    try:
        # All hold it at the same time.
        lines = {each.stdout.readline() for each in processes if each.stdout is not None}
        (line,) = lines
        assert line.split()[2] == "1000"
        folder = Path(line.split()[0]).parent
        assert disks.forget(tmp_path / "cache") == [folder]
    finally:
        for each in processes:
            each.communicate("\n")
    assert disks.forget(tmp_path / "cache") == []
    assert not folder.exists()


def test_least_recently_used_disks_are_removed_but_those_in_use(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disks, "KEPT", 2)
    cache = tmp_path / "cache"
    images = []
    for number in range(4):
        copy = tmp_path / f"{number}.qcow2"
        copy.write_bytes(packed.read_bytes())
        images.append(image_of(copy))
    with raw_disk(images[0], cache) as first:
        for image in images[1:]:
            time.sleep(0.02)
            with raw_disk(image, cache) as path:
                last = path
        kept = {each.name for each in disks.store(cache).iterdir()}
        assert kept == {first.parent.name, last.parent.name, disks._key(images[2])}
        assert first.exists()
    with raw_disk(images[1], cache):
        kept = {each.name for each in disks.store(cache).iterdir()}
    assert kept == {last.parent.name, disks._key(images[1])}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 80 MB."""
    with small_disk(tmp_path / "small", "80M") as folder:
        yield folder


def test_cache_that_cannot_be_written_is_reported(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with (
        pytest.raises(HostError, match="cannot be unpacked in") as caught,
        raw_disk(image_of(packed), tmp_path / "cache"),
    ):
        pass
    assert "HOTPLATE_CACHE" in str(caught.value.hint)


def test_image_that_was_removed_meanwhile_is_reported(packed: Path, tmp_path: Path) -> None:
    image = image_of(packed)
    packed.unlink()
    with pytest.raises(HostError, match=str(packed)), raw_disk(image, tmp_path / "cache"):
        pass
