"""Root file systems of images: found on real disks, unpacked into a cache, mounted."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_disk import small_disk
from tiny_disk import SYSTEM, partitioned

from hotplate.children import mounts
from hotplate.container import root
from hotplate.container.root import Root, find_root, open_root, predictable_names
from hotplate.errors import HostError, ImageError, UsageError
from hotplate.image import overlay
from hotplate.image.inspect import Image
from hotplate.image.plan import Layout
from hotplate.image.qcow2 import Link
from hotplate.inspection import raw_disk as disks
from hotplate.inspection.disk import Disk
from hotplate.inspection.ext4 import Ext4
from hotplate.inspection.raw_disk import forget, raw_disk
from hotplate.inspection.tree import Tree

MIB = 1 << 20
#: GPT types, as sfdisk takes them (Discoverable Partitions Specification).
ROOT_X86_64 = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709"
ROOT_AARCH64 = "b921b045-1df0-41c3-af44-4c6f280d3fae"
EFI = "uefi"
LINUX = "linux"
X86_64, AARCH64 = 62, 183
MACHINE = {"x86_64": X86_64, "aarch64": AARCH64}.get(platform.machine(), 0)

pytestmark = [pytest.mark.tool("mkfs.ext4"), pytest.mark.tool("sfdisk")]


def run(*command: str | Path, text: str = "") -> None:
    done = subprocess.run(command, env=SYSTEM, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def plant(tree: Path, machine: int = MACHINE) -> Path:
    """Write the files by which a system is known into a folder."""
    for name in ("etc/marker", "usr/lib/systemd/systemd-udevd"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("here\n")
    init = tree / "usr/lib/systemd/systemd"
    init.write_bytes(b"\x7fELF".ljust(18, b"\0") + struct.pack("<H", machine) + bytes(44))
    init.chmod(0o755)
    (tree / "usr/sbin").mkdir()
    (tree / "usr/sbin/init").symlink_to("../lib/systemd/systemd")
    (tree / "sbin").symlink_to("usr/sbin")
    return tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return plant(tmp_path / "tree")


@pytest.fixture
def system(tree: Path) -> Path:
    """An ext4 file system with a system."""
    return ext4(tree.with_name("system.ext4"), tree)


@pytest.fixture
def boot(tmp_path: Path) -> Path:
    """An ext4 file system with a kernel only."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels/vmlinuz").write_text("kernel")
    return ext4(tmp_path / "boot.ext4", tmp_path / "kernels")


def ext4(path: Path, tree: Path, *options: str, mib: int = 8) -> Path:
    run("mkfs.ext4", "-q", "-F", *options, "-d", tree, path, f"{mib}M")
    return path


def blank(path: Path, mib: int, content: dict[int, bytes] | None = None) -> Path:
    """Make a file of zeros, with bytes at offsets."""
    with path.open("wb") as stream:
        stream.truncate(mib * MIB)
        for offset, data in (content or {}).items():
            stream.seek(offset)
            stream.write(data)
    return path


#: Content that is no file system of a server, by the name of its kind.
FOREIGN = {
    "lvm": {512: b"LABELONE", 536: b"LVM2 001"},
    "lvm in the first sector": {0: b"LABELONE", 24: b"LVM2 001"},
    "luks": {0: b"LUKS\xba\xbe"},
    "squashfs": {0: b"hsqs"},
    "unknown": {0: b"something"},
}


def image_of(path: Path, layout: Layout = Layout.DISK, *, arch: str = "x86_64") -> Image:
    kind = "qcow2" if path.suffix == ".qcow2" else "raw"
    size = path.stat().st_size
    if kind == "qcow2":
        (size,) = struct.unpack(">Q", path.read_bytes()[24:32])
    chain = (Link(path, kind),)
    return Image(path, kind, size, layout, arch=arch, chain=chain)


def found(path: Path, layout: Layout = Layout.DISK) -> Root:
    return find_root(image_of(path, layout, arch=platform.machine()), path)


def packed(path: Path, *options: str) -> Path:
    """Make a compressed qcow2 file of a raw one."""
    target = path.with_suffix(".qcow2")
    run("qemu-img", "convert", "-c", "-O", "qcow2", *options, path, target)
    return target


def digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def tree_in(path: Path) -> Tree:
    data = path.read_bytes()
    return Tree(Ext4(Disk(lambda at, size: data[at : at + size], len(data), str(path))))


# -- finding -------------------------------------------------------------------------------------


def test_bare_file_system_is_the_root(system):
    assert found(system, Layout.PARTITION) == Root(
        system, 0, system.stat().st_size, "ext4", "noload", kept=[]
    )


@pytest.mark.parametrize("label", ["dos", "gpt"])
def test_root_is_found_behind_other_partitions(label, system, boot, tmp_path):
    efi = blank(tmp_path / "efi", 2, {82: b"FAT32"})
    kind = "ef" if label == "dos" else EFI
    disk = partitioned(
        tmp_path / "disk.raw", (kind, efi), (LINUX, boot), (LINUX, system), label=label
    )
    root = found(disk)
    assert (root.offset, root.size) == (11 * MIB, 8 * MIB)
    assert (root.file_system, root.unclean) == ("ext4", False)


@pytest.mark.tool("mkfs.xfs")
def test_largest_file_system_is_the_root_when_none_can_be_read(boot, tmp_path):
    xfs = blank(tmp_path / "xfs", 304)
    run("mkfs.xfs", "-q", xfs)
    disk = partitioned(tmp_path / "disk.raw", (LINUX, boot), (LINUX, xfs))
    root = found(disk)
    assert (root.offset, root.file_system) == (9 * MIB, "xfs")
    assert root.options == "norecovery,nouuid"


def test_type_of_a_partition_marks_the_root(tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    small = blank(tmp_path / "small", 1, {0: b"XFSB"})
    large = blank(tmp_path / "large", 2, {0: b"XFSB"})
    monkeypatch.setattr(root, "_kernel_mounts", lambda _: True)
    disk = partitioned(tmp_path / "disk.raw", (ROOT_X86_64, small), (ROOT_AARCH64, large))
    assert found(disk).offset == MIB
    disk = partitioned(tmp_path / "other.raw", (LINUX, small), (ROOT_AARCH64, large))
    assert found(disk).offset == 2 * MIB


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("lvm", "partition 2 is in LVM, and has no volume that is read here"),
        ("lvm in the first sector", "partition 2 is in LVM"),
        ("luks", "partition 2 is encrypted (LUKS), and there is no key for it"),
        ("squashfs", "partition 2 is squashfs, which is no root of a server"),
        ("unknown", "partition 2 has a file system that is not known"),
    ],
)
def test_other_roots_are_refused(kind, sentence, boot, tmp_path):
    content = blank(tmp_path / "content", 9, FOREIGN[kind])
    disk = partitioned(tmp_path / "disk.raw", (LINUX, boot), (LINUX, content))
    with pytest.raises(ImageError) as caught:
        found(disk)
    assert caught.value.message.startswith(f'no container can run "{disk}": {sentence}')
    assert caught.value.hint == "--machine qemu"


@pytest.mark.root
@pytest.mark.tool("lvm")
@pytest.mark.parametrize("pieces", [1, 2])
def test_root_in_a_volume_of_lvm_is_found_when_it_is_in_one_piece(system, tmp_path, pieces: int):
    disk, name = blank(tmp_path / "disk.raw", 64), tmp_path / "device"
    options = ["--driverloaded", "n", "--config", "backup { backup=0 archive=0 }"]
    create = ["lvm", "lvcreate", *options, "-an", "-Zn", "-Wn", "vg", "-l"]
    run("sh", "-euc", 'losetup -f --show "$1" >"$2"', "sh", disk, name)
    device = name.read_text().strip()
    try:
        run("lvm", "vgcreate", *options, "vg", device)
        run(*create, "2", "-n", "root")
        if pieces == 2:
            run(*create, "1", "-n", "var")
            run("lvm", "lvextend", *options, "-l", "+1", "vg/root")
    finally:
        run("losetup", "-d", device)
    with disk.open("r+b") as stream:
        stream.seek(MIB)
        stream.write(system.read_bytes())
    if pieces == 2:
        with pytest.raises(ImageError, match=r'the volume "vg/root" is in 2 pieces'):
            found(disk, Layout.PARTITION)
        return
    root = found(disk, Layout.PARTITION)
    assert (root.offset, root.size, root.file_system) == (MIB, 8 * MIB, "ext4")


def test_small_xfs_of_boot_is_not_taken_for_the_root_beside_lvm(tmp_path):
    boot = blank(tmp_path / "boot", 1, {0: b"XFSB"})
    lvm = blank(tmp_path / "lvm", 2, FOREIGN["lvm"])
    disk = partitioned(tmp_path / "disk.raw", (LINUX, boot), (LINUX, lvm))
    with pytest.raises(ImageError, match="partition 2 is in LVM"):
        found(disk)


def test_large_disk_for_data_is_not_taken_for_the_root(tmp_path, monkeypatch):
    monkeypatch.setattr(root, "_kernel_mounts", lambda _: True)
    known = blank(tmp_path / "known", 1, {0: b"XFSB"})
    data = blank(tmp_path / "data", 2)
    disk = partitioned(tmp_path / "disk.raw", (LINUX, known), (LINUX, data))
    assert found(disk).offset == MIB


@pytest.mark.tool("mkswap")
def test_disk_without_a_system_is_refused(boot, tmp_path):
    swap = blank(tmp_path / "swap", 1)
    run("mkswap", "-q", swap)
    disk = partitioned(tmp_path / "disk.raw", (LINUX, swap), (LINUX, boot))
    with pytest.raises(ImageError, match='no file system in it has "/etc" and "/usr"'):
        found(disk)


@pytest.mark.parametrize("content", [{}, {510: b"\x55\xaa"}], ids=["no table", "an empty table"])
def test_empty_disk_is_refused(tmp_path, content):
    disk = blank(tmp_path / "disk.raw", 1, content)
    with pytest.raises(ImageError, match="the disk has a file system that is not known"):
        found(disk)


def test_ext4_that_cannot_be_read_is_refused_with_the_reason(system):
    with system.open("r+b") as stream:
        # s_feature_incompat, with a feature of the future.
        stream.seek(1024 + 0x60)
        stream.write(struct.pack("<I", 0x8000_0000))
    with pytest.raises(ImageError, match=r"no container can run .* are not known") as caught:
        found(system, Layout.PARTITION)
    assert caught.value.hint == "--machine qemu"


def test_file_system_without_a_driver_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(root, "_kernel_mounts", lambda _: False)
    disk = partitioned(tmp_path / "disk.raw", (LINUX, blank(tmp_path / "a", 1, {0: b"XFSB"})))
    with pytest.raises(ImageError, match=r"is xfs, which this host's kernel does not mount"):
        found(disk)


def test_image_of_another_processor_is_refused_before_it_is_unpacked(system, tmp_path, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    image = image_of(packed(system), arch="aarch64")
    with (
        pytest.raises(UsageError, match="is for the processor aarch64") as caught,
        open_root(image, tmp_path / "cache"),
    ):
        pass
    assert caught.value.hint == "--machine qemu"
    assert not (tmp_path / "cache").exists()


def test_processor_is_that_of_the_programs(tmp_path, monkeypatch):
    """No manifest names the processor of a stranger's disk."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    system = ext4(tmp_path / "system", plant(tmp_path / "arm", AARCH64))
    with pytest.raises(UsageError, match="is for the processor aarch64"):
        found(system, Layout.PARTITION)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert find_root(image_of(system, Layout.PARTITION), system).file_system == "ext4"


def test_image_without_systemd_is_refused(tree):
    (tree / "usr/lib/systemd/systemd").unlink()
    (tree / "usr/sbin/init").unlink()
    (tree / "usr/sbin/init").symlink_to("openrc-init")
    (tree / "usr/sbin/openrc-init").write_text("")
    system = ext4(tree.with_name("system"), tree)
    with pytest.raises(ImageError, match="its init is openrc-init, and a container is booted by"):
        found(system, Layout.PARTITION)


# -- names of network interfaces -----------------------------------------------------------------

GRUB = "menuentry Linux {{\n  linux /boot/vmlinuz root=LABEL=root ro {}\n}}\n"


@pytest.mark.parametrize(
    ("path", "text", "predictable"),
    [
        ("boot/grub/grub.cfg", GRUB.format("quiet"), True),
        ("boot/grub/grub.cfg", GRUB.format("net.ifnames=0 biosdevname=0"), False),
        ("boot/grub2/grub.cfg", GRUB.format("net.ifnames=0 net.ifnames=1"), True),
        ("boot/grub2/grub.cfg", GRUB.format("") + GRUB.format("net.ifnames=0"), True),
        ("boot/loader/entries/a.conf", "title A\noptions ro net.ifnames=0\n", False),
        ("etc/kernel/cmdline", "ro net.ifnames=0", False),
        ("etc/systemd/network/99-default.link", "", False),
        ("etc/udev/rules.d/80-net-setup-link.rules", "", False),
    ],
)
def test_names_of_interfaces_are_those_of_a_boot(path, text, predictable, tree):
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_text(text)
    read = tree_in(ext4(tree.with_name("system"), tree))
    assert predictable_names(read) is predictable


def test_link_to_null_masks_the_names_of_interfaces(tree):
    (tree / "etc/systemd/network").mkdir(parents=True)
    (tree / "etc/systemd/network/99-default.link").symlink_to("/dev/null")
    assert not found(ext4(tree.with_name("system"), tree), Layout.PARTITION).predictable_names


def test_image_without_udev_has_the_kernels_names(tree):
    (tree / "usr/lib/systemd/systemd-udevd").unlink()
    assert not found(ext4(tree.with_name("system"), tree), Layout.PARTITION).predictable_names


def test_boot_menu_of_a_partition_image_is_not_used(tree):
    (tree / "boot/grub").mkdir(parents=True)
    (tree / "boot/grub/grub.cfg").write_text(GRUB.format("net.ifnames=0"))
    system = ext4(tree.with_name("system"), tree)
    assert found(system, Layout.PARTITION).predictable_names
    assert not found(system, Layout.DISK).predictable_names


# -- unpacking -----------------------------------------------------------------------------------


def test_raw_image_is_its_own_disk(system, tmp_path):
    with raw_disk(image_of(system), tmp_path / "cache") as path:
        assert path == system
    assert not (tmp_path / "cache").exists()


def test_qcow2_image_is_unpacked_once(system, tmp_path):
    image = image_of(packed(system))
    with raw_disk(image, tmp_path / "cache") as path:
        assert path.read_bytes() == system.read_bytes()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert path.stat().st_blocks * 512 < system.stat().st_size
        first = path.stat()
    with raw_disk(image, tmp_path / "cache") as path:
        assert os.path.samestat(first, path.stat())
    assert sorted(each.name for each in path.parent.iterdir()) == ["disk.raw", "image"]


def test_leftover_of_a_killed_process_is_not_used(system, tmp_path):
    image = image_of(packed(system))
    folder = disks.store(tmp_path) / disks._key(image)
    folder.mkdir(parents=True, mode=0o700)
    (folder / "disk.raw.new").write_bytes(b"x" * MIB)
    with raw_disk(image, tmp_path) as path:
        assert path.read_bytes() == system.read_bytes()


@pytest.mark.root
def test_image_that_only_root_can_read_is_unpacked(system, tmp_path):
    image = image_of(packed(system))
    image.path.chmod(0o600)
    with raw_disk(image, tmp_path / "cache") as path:
        assert path.read_bytes() == system.read_bytes()


def test_image_that_changes_meanwhile_is_not_kept(system, tmp_path, monkeypatch):
    image = image_of(packed(system))
    convert = disks._convert

    def slow(image: Image, part: Path) -> None:
        convert(image, part)
        os.utime(image.path, ns=(1, 1))

    monkeypatch.setattr(disks, "_convert", slow)
    with (
        pytest.raises(ImageError, match="was changed while it was unpacked"),
        raw_disk(image, tmp_path / "cache"),
    ):
        pass
    assert list((tmp_path / "cache/roots").iterdir()) == []


def test_backing_files_are_those_that_were_checked(system, boot, tmp_path):
    top = tmp_path / "top.qcow2"
    run("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", boot, top)
    image = replace(image_of(top), chain=(Link(top, "qcow2"), Link(system, "raw")))
    # The header names another one.
    with raw_disk(image, tmp_path / "cache") as path:
        assert path.read_bytes() == system.read_bytes()


def test_damaged_image_leaves_nothing(tmp_path):
    disk = blank(tmp_path / "disk.raw", 4, {0: os.urandom(100) * 20_000})
    path = packed(disk)
    with path.open("r+b") as stream:
        # The compressed clusters begin behind header, tables and counts.
        stream.seek(0x50000)
        stream.write(b"\xff" * (path.stat().st_size - 0x50000))
    with (
        pytest.raises(ImageError, match="could not be unpacked") as caught,
        raw_disk(image_of(path), tmp_path / "cache"),
    ):
        pass
    assert caught.value.hint == f"qemu-img check {path}"
    assert list((tmp_path / "cache/roots").iterdir()) == []


def test_disk_that_is_too_large_is_refused_before_it_is_written(tmp_path, monkeypatch):
    """A compressed image is smaller than its disk."""
    path = packed(blank(tmp_path / "disk.raw", 128, {0: b"a" * (100 * MIB)}))
    assert path.stat().st_size < 2 * MIB
    free = SimpleNamespace(free=overlay.SPARE + 99 * MIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    with (
        pytest.raises(HostError, match="there are only 170 MB free") as caught,
        raw_disk(image_of(path), tmp_path / "cache"),
    ):
        pass
    assert "df -h" in caught.value.hint
    assert list((tmp_path / "cache/roots").iterdir()) == []


@pytest.mark.root
def test_full_disk_leaves_nothing(tmp_path, monkeypatch):
    path = packed(blank(tmp_path / "disk.raw", 32, {0: os.urandom(MIB) * 24}))
    cache = tmp_path / "cache"
    with small_disk(cache, "8m"):
        # Another process fills it meanwhile.
        monkeypatch.setattr(disks, "check_space", lambda *_, **__: None)
        with (
            pytest.raises(HostError, match="there is no space left to unpack") as caught,
            raw_disk(image_of(path), cache),
        ):
            pass
        assert list((cache / "roots").iterdir()) == []
    assert caught.value.hint.startswith("df -h ")


# -- the cache -----------------------------------------------------------------------------------


def keep(cache: Path, name: str, used: int, *, mib: int = 1) -> Path:
    """Put a disk into the cache."""
    folder = disks.store(cache) / name
    folder.mkdir(parents=True, mode=0o700)
    (folder / disks.DISK).write_bytes(b"x" * mib * MIB)
    os.utime(folder, (used, used))
    return folder


def test_disks_that_are_too_large_together_are_removed(tmp_path, monkeypatch):
    old, newest = keep(tmp_path, "a", 1, mib=2), keep(tmp_path, "b", 2, mib=2)
    monkeypatch.setattr(disks, "MAX_BYTES", 3 * MIB)
    assert forget(tmp_path, keep=8) == []
    assert [each.exists() for each in (old, newest)] == [False, True]


# -- mounting ------------------------------------------------------------------------------------

MAKERS = {
    "ext4": ("mkfs.ext4", "-q", "-F"),
    "xfs": ("mkfs.xfs", "-q"),
    "btrfs": ("mkfs.btrfs", "-q"),
}


#: Fills a file system, and copies its file while it is mounted, as from a running server. The last
#: file goes into the journal first, or the log.
FILL = """
mount -o loop "$1" "$2" && cp -a "$3/." "$2" && umount "$2"
mount -o loop "$1" "$2" && echo last >"$2/etc/last" && sync "$2/etc/last"
cp --sparse=always "$1" "$4" && umount "$2"
"""


@contextlib.contextmanager
def mounted(root: Root, place: Path) -> Iterator[Path]:
    place.mkdir()
    with root.path.open("rb") as stream:
        mounts.loop(
            stream.fileno(),
            place,
            kind=root.file_system,
            options=root.options,
            offset=root.offset,
            size=root.size,
        )
    try:
        yield place
    finally:
        run("umount", place)


@pytest.mark.root
@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=pytest.mark.tool(command[0])) for kind, command in MAKERS.items()],
)
@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_mount_does_not_change_the_image(kind, clean, tree, tmp_path):
    if kind not in Path("/proc/filesystems").read_text().split():
        pytest.skip(f"the kernel has no {kind} loaded")
    content = blank(tmp_path / "content", 304)
    run(*MAKERS[kind], content)
    copy, place = tmp_path / "copy", tmp_path / "place"
    place.mkdir()
    # Any container that starts meanwhile would copy a mount of ours, and keep the file system.
    run("unshare", "--mount", "sh", "-euc", FILL, "sh", content, place, tree, copy)
    disk = partitioned(tmp_path / "disk.raw", (LINUX, content if clean else copy))
    before = digest(disk)
    root = found(disk)
    assert (root.file_system, root.offset) == (kind, MIB)
    assert root.unclean is (not clean and kind != "xfs")
    with (
        mounted(root, tmp_path / "read") as place,
        pytest.raises(OSError, match="Read-only file system"),
    ):
        assert (place / "etc/marker").read_text() == "here\n"
        (place / "etc/marker").write_text("other")
    assert digest(disk) == before
