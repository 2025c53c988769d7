"""The root file system of an image, for the host's kernel to mount.

A qcow2 image is unpacked first (:mod:`hotplate.inspection.raw_disk`).
"""

from __future__ import annotations

import contextlib
import os
import platform
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotplate.children.mounts import MOUNT_OPTIONS
from hotplate.errors import ImageError, UsageError
from hotplate.image.inspect import DEFAULT_ARCH, Image
from hotplate.image.plan import Layout
from hotplate.inspection.boot_entries import kernel_words
from hotplate.inspection.contents import Contents
from hotplate.inspection.disk import Disk
from hotplate.inspection.ext4 import Ext4
from hotplate.inspection.partitions import Partition, marked_root, partitions
from hotplate.inspection.raw_disk import raw_disk, stat_of
from hotplate.inspection.tree import Tree
from hotplate.inspection.units import Units

#: Why no container can run a root in other places, by the name of the file system.
REFUSED = {
    "lvm": "is in LVM, and has no volume that is read here",
    "luks": "is encrypted (LUKS), and there is no key for it",
    "": "has a file system that is not known",
}
HINT = "--machine qemu"
#: Names the processor of a program in its ELF header (elf(5), ``e_machine``).
ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
#: Programs that every system has one of; links are followed.
PROGRAMS = ("/usr/lib/systemd/systemd", "/sbin/init", "/bin/sh")
UDEV = ("/usr/lib/systemd/systemd-udevd", "/lib/systemd/systemd-udevd")
#: Masked, these files leave the kernel's names to network interfaces (systemd's
#: PREDICTABLE_INTERFACE_NAMES.md).
NAMING = ("/etc/systemd/network/99-default.link", "/etc/udev/rules.d/80-net-setup-link.rules")
# From Linux' btrfs_tree.h, struct btrfs_super_block: its place, and that of log_root in it.
_BTRFS_LOG_ROOT = 0x10000 + 0x60


@dataclass(frozen=True)
class Root:
    """A root file system.

    :param path: a file with a whole disk.
    :param offset: bytes of the disk before it.
    :param size: its bytes.
    :param file_system: the kernel's name of its type.
    :param options: for mounting it, but for ``ro``.
    :param unclean: it was not unmounted, and its last changes, which are in its journal, are not
        seen; never for xfs, whose superblock does not tell.
    :param kept: the units that are enabled, where a boot is the first and its presets would come
        too late in a virtual machine; None for others, and where the tree is not read here.
    :param predictable_names: a boot names network interfaces by their place (``ens4``), and not
        ``eth0``; assumed for a file system that is not read here.
    """

    path: Path
    offset: int
    size: int
    file_system: str
    options: str
    unclean: bool = False
    predictable_names: bool = True
    kept: Sequence[str] | None = None


@contextlib.contextmanager
def open_root(image: Image, cache: Path) -> Iterator[Root]:
    """Find an image's root file system, and keep its raw disk as long as the context lasts.

    :param cache: for the disks of qcow2 images.
    :raises UsageError: when the image is for another processor than this host's.
    :raises ImageError: when it has no root file system that the host's kernel mounts.
    :raises HostError: when its disk cannot be unpacked.
    """
    # The default says nothing: a disk of somebody else's has no manifest.
    if image.arch != DEFAULT_ARCH:
        _check_processor(image, image.arch)
    with raw_disk(image, cache) as path:
        yield find_root(image, path)


def find_root(image: Image, path: Path) -> Root:
    """Find the root file system on a raw disk.

    :param image: for messages, and its layout.
    :param path: its raw disk.
    :raises UsageError: when its programs are for another processor than this host's.
    :raises ImageError: when there is none that the host's kernel mounts, or it has no systemd.
    """
    size = stat_of(path).st_size
    with path.open("rb") as stream:
        disk = Disk(lambda at, length: os.pread(stream.fileno(), length, at), size, str(image.path))
        chosen, tree = _chosen(disk, image)
        _check_processor(image, (tree and _processor(tree)) or image.arch)
        if tree is not None:
            _check_init(image, Contents(tree).init)
        loader = image.layout is Layout.DISK
        return Root(
            path,
            chosen.start,
            min(chosen.size, size - chosen.start),
            chosen.file_system,
            MOUNT_OPTIONS[chosen.file_system],
            unclean=_unclean(disk, chosen, tree),
            predictable_names=tree is None or predictable_names(tree, loader=loader),
            kept=None if tree is None else _kept(tree, loader=loader),
        )


def predictable_names(tree: Tree, *, loader: bool = True) -> bool:
    """Return whether a boot names network interfaces by their place, and not ``eth0``.

    :param loader: a boot loader of the image starts it, with the command line in its menu.
    """
    # Of several, the last one counts; udev reads it as a boolean.
    words = _kernel_words(tree, loader=loader)
    values = [word.partition("=")[2] for word in words if word.startswith("net.ifnames=")]
    masked = any(
        tree.target(path) == "/dev/null" or (tree.exists(path) and not tree.size(path))
        for path in NAMING
    )
    return values[-1:] != ["0"] and not masked and any(tree.exists(each) for each in UDEV)


def _kernel_words(tree: Tree, *, loader: bool) -> list[str]:
    return kernel_words(tree) if loader else []


def _kept(tree: Tree, *, loader: bool) -> Sequence[str] | None:
    """See :attr:`Root.kept`."""
    units = Units(tree)
    too_late = units.presets_come_too_late(_kernel_words(tree, loader=loader))
    return sorted(units.enabled()) if too_late else None


def _check_processor(image: Image, processor: str) -> None:
    if processor != platform.machine():
        raise UsageError(
            f'the image "{image.path}" is for the processor {processor}, and a container runs on '
            f"the host's, which is {platform.machine()}",
            hint=HINT,
        )


def _check_init(image: Image, init: str) -> None:
    if init != "systemd":
        raise ImageError(
            f'no container can run "{image.path}": its init is {init or "missing"}, and a '
            "container is booted by systemd only",
            hint=HINT,
        )


def _processor(tree: Tree) -> str:
    """Return the processor of a system's programs, "" when it is not known."""
    for path in PROGRAMS:
        head = tree.read(path, 20)
        if head.startswith(b"\x7fELF") and len(head) == 20:
            return ELF_MACHINES.get(struct.unpack_from("<H", head, 18)[0], "")
    return ""


def _unclean(disk: Disk, partition: Partition, tree: Tree | None) -> bool:
    if partition.file_system == "btrfs":
        return any(disk.read(partition.start + _BTRFS_LOG_ROOT, 8))
    return tree is not None and tree.file_system.unclean


def _chosen(disk: Disk, image: Image) -> tuple[Partition, Tree | None]:
    """Return the partition with the root, and its files where they are read here."""
    others = []
    unread = ""
    listed = partitions(disk)
    volumes = any(each.volume for each in listed)
    for partition in listed:
        # Its volumes are in the list, too.
        if volumes and partition.file_system == "lvm":
            continue
        if partition.purpose != "data" or partition.file_system in ("swap", "vfat"):
            continue
        if partition.file_system == "ext4":
            try:
                tree = Tree(Ext4(partition.on(disk)))
                system = tree.exists("/etc") and tree.exists("/usr")
            except ImageError as error:
                unread = error.message
            else:
                if system:
                    _check_pieces(image, partition)
                    return partition, tree
                # One of /boot, say.
                continue
        others.append(partition)
    if not others:
        raise ImageError(
            f'no container can run "{image.path}": no file system in it has "/etc" and "/usr"',
            hint=HINT,
        )
    marked = marked_root(disk, platform.machine())
    # Their trees are not read here. In images for clouds the largest is the root; one that is not
    # known may be anything.
    root = max(others, key=lambda each: (each.number == marked, bool(each.file_system), each.size))
    _check_pieces(image, root)
    if root.file_system == "ext4":
        raise ImageError(f'no container can run "{image.path}": {unread}', hint=HINT)
    if root.file_system not in MOUNT_OPTIONS:
        why = REFUSED.get(root.file_system, f"is {root.file_system}, which is no root of a server")
        raise ImageError(f'no container can run "{image.path}": {root} {why}', hint=HINT)
    if not _kernel_mounts(root.file_system):
        raise ImageError(
            f'the root file system of "{image.path}" is {root.file_system}, which this host\'s '
            "kernel does not mount, so no container can run it",
            hint=HINT,
        )
    return root, None


def _check_pieces(image: Image, root: Partition) -> None:
    """Refuse a volume that no loop device shows: one that is not read, or in several places."""
    why = root.refused and f"is {root.refused}"
    if len(root.pieces) > 1:
        why = f"is in {len(root.pieces)} pieces, and a container mounts only one"
    if why:
        raise ImageError(f'no container can run "{image.path}": {root} {why}', hint=HINT)


def _kernel_mounts(file_system: str) -> bool:
    """Return whether the kernel mounts a file system, as far as it tells before it tries."""
    # A module that is not loaded yet is not in the list; mount(2) loads it.
    listed = Path("/proc/filesystems").read_text().split()
    modules = Path("/lib/modules") / platform.release() / "kernel/fs" / file_system
    return file_system in listed or modules.exists()
