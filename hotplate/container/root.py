"""The root file system of an image, for the host's kernel to mount.

A qcow2 image is unpacked once into the cache: the kernel mounts files, and reads a raw one without
a program in between.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hotplate import locks
from hotplate.errors import HostError, ImageError, UsageError
from hotplate.image.inspect import Image
from hotplate.image.overlay import SPARE, check_space, last_words, qemu_img
from hotplate.inspection.disk import Disk
from hotplate.inspection.ext4 import Ext4
from hotplate.inspection.partitions import Partition, partitions
from hotplate.inspection.tree import Tree

#: The number of unpacked disks that are kept; the least recently used goes first.
KEPT = 8
DISK = "disk.raw"
#: Beside the disk: the name of its image, for people.
IMAGE_NAME = "image"
ATTEMPTS = 5
#: Options for mounting a file system that is never written to, also one that was not unmounted.
MOUNT_OPTIONS = {"ext4": "noload", "xfs": "norecovery,nouuid", "btrfs": ""}
HINT = "--machine qemu"


@dataclass(frozen=True)
class Root:
    """A root file system.

    :param path: a file with a whole disk.
    :param offset: bytes of the disk before it.
    :param size: its bytes.
    :param file_system: the kernel's name of its type.
    :param options: for mounting it, but for ``ro``.
    """

    path: Path
    offset: int
    size: int
    file_system: str
    options: str


@contextlib.contextmanager
def open_root(image: Image, cache: Path) -> Iterator[Root]:
    """Find an image's root file system, and keep its raw disk as long as the context lasts.

    :param cache: for the disks of qcow2 images.
    :raises UsageError: when the image is for another processor than this host's.
    :raises ImageError: when it has no root file system that the host's kernel mounts.
    :raises HostError: when its disk cannot be unpacked.
    """
    if image.arch != platform.machine():
        raise UsageError(
            f'the image "{image.path}" is for the processor {image.arch}, and a container runs on '
            f"the host's, which is {platform.machine()}",
            hint=HINT,
        )
    with raw_disk(image, cache) as path:
        yield find_root(image, path)


@contextlib.contextmanager
def raw_disk(image: Image, cache: Path) -> Iterator[Path]:
    """Yield a raw file with an image's whole disk: its own, or one in the cache.

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

    :return: the folders that should have been removed, but are in use.
    """
    folders = []
    for path in store(cache).glob("*/"):
        # Another process may remove it right now.
        with contextlib.suppress(OSError):
            folders.append((path.stat().st_mtime, path))
    in_use = []
    for _, path in sorted(folders, reverse=True)[keep:]:
        try:
            with locks.exclusive(path, wait=False):
                shutil.rmtree(path, ignore_errors=True)
        except locks.InUse:
            in_use.append(path)
        except FileNotFoundError:
            pass
    return in_use


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
                part.touch(mode=0o600)
                needed = sum(link.path.stat().st_blocks * 512 for link in image.chain)
                check_space(folder, needed=needed + SPARE)
                source = ("--image-opts", _source(image))
                done = qemu_img("convert", *source, "-n", "-O", "raw", *_sized(image, part))
                if done.returncode:
                    raise HostError(
                        f'the disk of "{image.path}" could not be unpacked: {last_words(done)}',
                        hint=f"df -h {shlex.quote(str(folder))}",
                    )
                (folder / IMAGE_NAME).write_text(image.path.name)
                part.rename(disk)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise HostError(
            f'the disk of "{image.path}" cannot be unpacked in "{folder}": {error.strerror}',
            hint="set HOTPLATE_CACHE to a directory that can be written",
        ) from error


def _sized(image: Image, part: Path) -> list[str]:
    """Make an empty file as large as the disk; return it as the target of a conversion."""
    os.truncate(part, image.virtual_size)
    # All of it reads as zeros already, so that holes stay holes.
    return ["--target-is-zero", str(part)]


def _source(image: Image) -> str:
    """Return an image with its checked backing files, as an option of QEMU's tools.

    The names in the headers are not used.
    """
    words = []
    prefix = ""
    for link in image.chain:
        name = str(link.path).replace(",", ",,")
        words += [
            f"{prefix}driver={link.format}",
            f"{prefix}file.driver=file",
            f"{prefix}file.filename={name}",
        ]
        prefix += "backing."
    return ",".join(words)


def find_root(image: Image, path: Path) -> Root:
    """Find the root file system on a raw disk.

    :param image: for messages.
    :param path: its raw disk.
    :raises ImageError: when there is none that the host's kernel mounts.
    :raises HostError: when it cannot be read.
    """
    size = _stat(path).st_size
    with path.open("rb") as stream:
        disk = Disk(lambda at, length: os.pread(stream.fileno(), length, at), size, str(image.path))
        chosen = _chosen(disk, image)
    return Root(
        path,
        chosen.start,
        min(chosen.size, size - chosen.start),
        chosen.file_system,
        MOUNT_OPTIONS[chosen.file_system],
    )


def _chosen(disk: Disk, image: Image) -> Partition:
    data = [each for each in partitions(disk) if each.purpose == "data"]
    for partition in data:
        if partition.file_system == "ext4" and _has_system(disk, partition):
            return partition
    others = [each for each in data if each.file_system in MOUNT_OPTIONS]
    # Their trees are not read here: the largest is the root in images for clouds.
    others = [each for each in others if each.file_system != "ext4"]
    if others:
        root = max(others, key=lambda each: each.size)
        if not _kernel_mounts(root.file_system):
            raise ImageError(
                f'the root file system of "{image.path}" is {root.file_system}, which this host\'s '
                "kernel does not mount, so no container can run it",
                hint=HINT,
            )
        return root
    kinds = sorted({each.file_system or "unknown" for each in data})
    raise ImageError(
        f'no container can run "{image.path}": it has no root file system that the host mounts, '
        f"but {' and '.join(kinds) or 'no partition for data'}",
        hint=HINT,
    )


def _has_system(disk: Disk, partition: Partition) -> bool:
    with contextlib.suppress(ImageError):
        tree = Tree(Ext4(disk, partition.start))
        return tree.exists("/etc") and tree.exists("/usr")
    return False


def _kernel_mounts(file_system: str) -> bool:
    """Return whether the kernel mounts a file system, as far as it tells before it tries."""
    # A module that is not loaded yet is not in the list; mount(2) loads it.
    listed = Path("/proc/filesystems").read_text().split()
    modules = Path("/lib/modules") / platform.release() / "kernel/fs" / file_system
    return file_system in listed or modules.exists()
