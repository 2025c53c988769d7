"""The root file system of an image, for the host's kernel to mount.

A qcow2 image is unpacked once into the cache: the kernel mounts files, and reads a raw one without
a program in between.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import shlex
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hotplate import locks
from hotplate.children.keeper import FIRST_CHILD_FD, Keeper
from hotplate.errors import HostError, ImageError, UsageError
from hotplate.host_tools import find_tool
from hotplate.image.inspect import DEFAULT_ARCH, Image
from hotplate.image.overlay import SPARE, bounded, check_space
from hotplate.image.plan import Layout
from hotplate.inspection.contents import Contents
from hotplate.inspection.disk import Disk, all_may_read, image_options
from hotplate.inspection.ext4 import Ext4
from hotplate.inspection.partitions import Partition, marked_root, partitions
from hotplate.inspection.tree import Tree
from hotplate.inspection.units import kernel_words
from hotplate.timing.deadline import Deadline, DeadlineExceeded

#: The limits of the unpacked disks that are kept; the least recently used goes first.
KEPT = 8
MAX_BYTES = 20 << 30
#: The time limit of unpacking one.
SECONDS = 900.0
DISK = "disk.raw"
#: Beside the disk: the name of its image, for people.
IMAGE_NAME = "image"
#: Beside the disk while it is unpacked: the output of qemu-img.
OUTPUT = "output"
ATTEMPTS = 5
#: Options for mounting a file system that is never written to, also one that was not unmounted.
#: btrfs has had this one since Linux 5.9; without it, an unclean one is not mounted at all.
MOUNT_OPTIONS = {"ext4": "noload", "xfs": "norecovery,nouuid", "btrfs": "rescue=nologreplay"}
#: Why no container can run a root in other places, by the name of the file system.
REFUSED = {
    "lvm": "is in LVM, whose volumes are not set up for a container",
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


@contextlib.contextmanager
def raw_disk(image: Image, cache: Path) -> Iterator[Path]:
    """Yield a raw file with an image's whole disk: its own, or one in the cache.

    :raises ImageError: when the image is damaged.
    :raises HostError: when it cannot be unpacked.
    """
    if image.format == "raw":
        yield image.path
        return
    folder = store(cache) / _key(image)
    for attempt in range(ATTEMPTS):
        # Not before the first look: the users of the disk hold the folder together.
        if attempt:
            _unpack(image, folder)
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locks.shared(folder))
            except (FileNotFoundError, NotADirectoryError):
                # It was never made, cannot be made, or another process has removed it to make room.
                continue
            if not (folder / DISK).exists():
                continue
            with contextlib.suppress(OSError):
                os.utime(folder)
            forget(cache, keep=KEPT)
            yield folder / DISK
            return
    raise HostError(
        f'the disk of "{image.path}" was removed from the cache again and again',
        hint="hotplate cache",
    )


def store(cache: Path) -> Path:
    """Return the folder of the unpacked disks in a cache directory."""
    return cache / "roots"


def forget(cache: Path, *, keep: int = 0) -> list[Path]:
    """Remove all unpacked disks but the most recently used and those in use.

    :param keep: how many are kept, as long as they have less than :data:`MAX_BYTES` together.
    :return: the folders that should have been removed, but are in use.
    """
    folders = []
    for path in store(cache).glob("*/"):
        # Another process may remove it right now.
        with contextlib.suppress(OSError):
            folders.append((path.stat().st_mtime, path))
    in_use = []
    total = 0
    for number, (_, path) in enumerate(sorted(folders, reverse=True)):
        total += _disk_usage(path)
        if number < keep and total <= MAX_BYTES:
            continue
        try:
            with locks.exclusive(path, wait=False):
                shutil.rmtree(path, ignore_errors=True)
        except locks.InUse:
            in_use.append(path)
        except FileNotFoundError:
            pass
    return in_use


def _disk_usage(folder: Path) -> int:
    # A disk that is being unpacked counts too.
    with contextlib.suppress(OSError):
        return sum(each.stat().st_blocks * 512 for each in folder.iterdir())
    return 0


def _key(image: Image) -> str:
    """Return the name of an image's folder: another one when a file of it has changed."""
    stamps = []
    for link in image.chain:
        stat = _stat(link.path)
        times = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        stamps.append((str(link.path), link.format, *times))
    return hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:24]


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise HostError(f'"{path}" cannot be read: {error.strerror}') from error


def _unpack(image: Image, folder: Path) -> None:
    """Make the raw disk, unless it is there; it exists whole or not at all."""
    try:
        with locks.exclusive(folder, make=True):
            disk, part = folder / DISK, folder / f"{DISK}.new"
            if disk.exists():
                return
            try:
                # Of a process that was killed meanwhile.
                part.unlink(missing_ok=True)
                # As large as the disk: all of it reads as zeros, so that holes stay holes.
                part.touch(mode=0o600)
                os.truncate(part, image.virtual_size)
                _convert(image, part)
                if _key(image) != folder.name:
                    raise ImageError(f'the image "{image.path}" was changed while it was unpacked')
                (folder / IMAGE_NAME).write_text(image.path.name)
                part.rename(disk)
            finally:
                part.unlink(missing_ok=True)
                (folder / OUTPUT).unlink(missing_ok=True)
                # Removed under the lock; an empty folder would count as a kept disk.
                if not disk.exists():
                    shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise HostError(
            f'the disk of "{image.path}" cannot be unpacked in "{folder}": {error.strerror}',
            hint="set HOTPLATE_CACHE to a directory that can be written",
        ) from error


def _convert(image: Image, part: Path) -> None:
    """Fill a file, which is as large as the disk of an image, with that disk.

    The program gets descriptors, and as root runs as a user that owns nothing where all users can
    read the image: it may be a stranger's.

    :raises ImageError: when the image is damaged.
    :raises HostError: when there is not enough space for it, or it takes too long.
    """
    with contextlib.ExitStack() as stack:
        target = os.open(part, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, target)
        sources = [os.open(each.path, os.O_RDONLY | os.O_CLOEXEC) for each in image.chain]
        for each in sources:
            stack.callback(os.close, each)
        confine = all_may_read(sources)
        # That user opens the target by its descriptor; nobody else gets into the folder (0700).
        os.fchmod(target, 0o606 if confine else 0o600)
        run = partial(
            _qemu_img,
            image,
            stack.enter_context(Keeper()),
            fds=[target, *sources],
            output=part.with_name(OUTPUT),
            confine=confine,
            deadline=Deadline(SECONDS, f'"{image.path}" to be unpacked'),
        )
        # The first descriptor is the target.
        options = image_options([each.format for each in image.chain], FIRST_CHILD_FD + 1)
        source = ["--image-opts", options, "-O", "raw"]
        measured = json.loads(run(["measure", "--output", "json", *source]))
        # The size of the image's file says less: it may be compressed.
        check_space(part.parent, needed=measured["required"] + SPARE)
        written = f"/proc/self/fd/{FIRST_CHILD_FD}"
        run(["convert", *source, "-n", "--target-is-zero", written])
        os.fchmod(target, 0o600)


def _qemu_img(
    image: Image,
    keeper: Keeper,
    arguments: Sequence[str],
    *,
    fds: Sequence[int],
    output: Path,
    confine: bool,
    deadline: Deadline,
) -> str:
    output.unlink(missing_ok=True)
    child = keeper.spawn(
        [*bounded(find_tool("qemu-img")), *arguments],
        directory=Path("/"),
        stderr=output,
        fds=fds,
        confine=confine,
    )
    try:
        status = child.wait(deadline)
    except DeadlineExceeded as error:
        raise HostError(
            f'the disk of "{image.path}" could not be unpacked within {deadline.seconds:.0f} s',
            hint=HINT,
        ) from error
    if status == 0:
        return output.read_text()
    complaint = child.complaint() or f"qemu-img ended with {status}"
    # On a full disk the complaint may have found no space either.
    full = shutil.disk_usage(output.parent).free < SPARE
    if full or os.strerror(errno.ENOSPC) in complaint:
        raise HostError(
            f'there is no space left to unpack the disk of "{image.path}"',
            hint=shlex.join(["df", "-h", str(output.parent)]),
        )
    raise ImageError(
        f'the disk of "{image.path}" could not be unpacked: {complaint}',
        hint=shlex.join(["qemu-img", "check", str(image.path)]),
    )


def find_root(image: Image, path: Path) -> Root:
    """Find the root file system on a raw disk.

    :param image: for messages, and its layout.
    :param path: its raw disk.
    :raises UsageError: when its programs are for another processor than this host's.
    :raises ImageError: when there is none that the host's kernel mounts, or it has no systemd.
    """
    size = _stat(path).st_size
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
        )


def predictable_names(tree: Tree, *, loader: bool = True) -> bool:
    """Return whether a boot names network interfaces by their place, and not ``eth0``.

    :param loader: a boot loader of the image starts it, with the command line in its menu.
    """
    words = kernel_words(tree) if loader else []
    # Of several, the last one counts; udev reads it as a boolean.
    values = [word.partition("=")[2] for word in words if word.startswith("net.ifnames=")]
    masked = any(
        tree.target(path) == "/dev/null" or (tree.exists(path) and not tree.size(path))
        for path in NAMING
    )
    return values[-1:] != ["0"] and not masked and any(tree.exists(each) for each in UDEV)


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
    for partition in partitions(disk):
        if partition.purpose != "data" or partition.file_system in ("swap", "vfat"):
            continue
        if partition.file_system == "ext4":
            try:
                tree = Tree(Ext4(disk, partition.start))
                if tree.exists("/etc") and tree.exists("/usr"):
                    return partition, tree
                # One of /boot, say.
                continue
            except ImageError as error:
                unread = error.message
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


def _kernel_mounts(file_system: str) -> bool:
    """Return whether the kernel mounts a file system, as far as it tells before it tries."""
    # A module that is not loaded yet is not in the list; mount(2) loads it.
    listed = Path("/proc/filesystems").read_text().split()
    modules = Path("/lib/modules") / platform.release() / "kernel/fs" / file_system
    return file_system in listed or modules.exists()
