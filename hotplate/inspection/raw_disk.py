"""The whole disk of an image as a raw file, for the host's kernel to mount.

An image of another format is unpacked once into the cache: the kernel mounts files, and reads a raw
one without a program in between.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from hotplate import locks
from hotplate.children.keeper import FIRST_CHILD_FD, Keeper
from hotplate.errors import HostError, ImageError
from hotplate.host_tools import find_tool
from hotplate.image.image_store import size_of
from hotplate.image.inspect import ImageFile
from hotplate.image.overlay import SPARE, bounded, check_space
from hotplate.inspection.disk import all_may_read, image_options, opened_files
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


@contextlib.contextmanager
def raw_disk(image: ImageFile, cache: Path) -> Iterator[Path]:
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
        # A disk that is being unpacked counts too.
        total += size_of(path)
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


def _key(image: ImageFile) -> str:
    """Return the name of an image's folder: another one when a file of it has changed."""
    stamps = []
    for link in image.chain:
        stat = stat_of(link.path)
        times = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        stamps.append((str(link.path), link.format, *times))
    return hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:24]


def stat_of(path: Path) -> os.stat_result:
    """Return the status of a file.

    :raises HostError: it is gone, or cannot be read.
    """
    try:
        return path.stat()
    except OSError as error:
        raise HostError(f'"{path}" cannot be read: {error.strerror}') from error


def _unpack(image: ImageFile, folder: Path) -> None:
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


def _convert(image: ImageFile, part: Path) -> None:
    """Fill a file, which is as large as the disk of an image, with that disk.

    The program gets descriptors, and as root runs as a user that owns nothing where all users can
    read the image: it may be a stranger's.

    :raises ImageError: when the image is damaged.
    :raises HostError: when there is not enough space for it, or it takes too long.
    """
    with contextlib.ExitStack() as stack:
        target = os.open(part, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, target)
        sources = opened_files(image, stack)
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
        source = ["--image-opts", image_options(image, FIRST_CHILD_FD + 1), "-O", "raw"]
        measured = json.loads(run(["measure", "--output", "json", *source]))
        # The size of the image's file says less: it may be compressed.
        check_space(part.parent, needed=measured["required"] + SPARE)
        written = f"/proc/self/fd/{FIRST_CHILD_FD}"
        run(["convert", *source, "-n", "--target-is-zero", written])
        os.fchmod(target, 0o600)


def _qemu_img(
    image: ImageFile,
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
            hint=shlex.join(
                ["qemu-img", "convert", "-O", "raw", str(image.path), f"{image.path}.raw"]
            ),
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
