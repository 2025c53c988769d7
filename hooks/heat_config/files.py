"""Files that survive a power cut: written beside their place, synced, renamed, directory synced."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

PRIVATE_FILE = 0o600
PRIVATE_DIRECTORY = 0o700
SHARED_DIRECTORY = 0o755


def sync_directory(path: str) -> None:
    """Make the names in the directory *path* durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: str, mode: int = PRIVATE_DIRECTORY) -> str:
    """Make *path* with *mode*, and its missing parents (0755), durable, and return *path*.

    A directory that exists keeps its mode: others may share it. A parent that is made here may be
    shared too, so others must be able to enter it.
    """
    missing = []
    # Find the first parent that exists, and make the others from there down.
    probe = os.path.abspath(path)
    while not os.path.isdir(probe):
        missing.append(probe)
        probe = os.path.dirname(probe)
    for directory in reversed(missing):
        wanted = mode if directory == missing[0] else SHARED_DIRECTORY
        try:
            # Private at first: it must not be open to others before it has its final mode.
            os.mkdir(directory, PRIVATE_DIRECTORY)
        except FileExistsError:
            continue
        # Set the mode despite the umask, and by descriptor: the parent's owner may have replaced
        # the name.
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fchmod(descriptor, wanted)
        finally:
            os.close(descriptor)
        sync_directory(os.path.dirname(directory))
    return path


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    """Write every byte of *data*; one write(2) may take only part of it."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def write_whole(
    path: str,
    data: str | bytes,
    mode: int = PRIVATE_FILE,
    sync: bool = True,
    *,
    owner: tuple[int, int] | None = None,
    directory: int | None = None,
) -> None:
    """Put *data* (text or bytes) at *path*; a reader sees the old or the new file, never a part.

    The file has *mode* from its first moment and stays whole through a power cut: written and
    synced beside its place, renamed, the directory synced. A symbolic link at *path* is replaced
    and not followed. With ``sync=False`` the directory is left to the caller to sync.
    owner: (user id, group id), -1 for one that stays; set before the file has its name.
    directory: the descriptor of an open directory in which *path* is a name.

    Raises OSError; then *path* is as it was and nothing is left beside it.
    """
    if isinstance(data, str):
        data = data.encode("utf-8", "replace")
    parent, name = os.path.split(path if directory is not None else os.path.abspath(path))
    # A name may have 255 bytes (NAME_MAX); leave some for the process id. In the state directory
    # Store.load() removes the files that a power cut leaves under such names.
    temporary = os.path.join(parent, f".{name[:200]}.{os.getpid()}.new")
    # O_EXCL and O_NOFOLLOW: in a directory of another user the name may have been planted.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags, PRIVATE_FILE, dir_fd=directory)
    except FileExistsError:  # a run with the same process id was cut here before a reboot
        os.unlink(temporary, dir_fd=directory)
        descriptor = os.open(temporary, flags, PRIVATE_FILE, dir_fd=directory)
    try:
        try:
            write_all(descriptor, data)
            if owner is not None:
                # Before chmod: a change of the owner clears the set-user-id bits.
                os.fchown(descriptor, *owner)
            os.fchmod(descriptor, mode)
            # Without this, a filesystem may write the rename before the data, and a power cut
            # leaves an empty file at the path.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        # Also for an exit by a signal's handler: nothing may be left beside the path.
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    if sync and directory is not None:
        os.fsync(directory)
    elif sync:
        sync_directory(parent)


def read_bounded(path: str, limit: int, *, follow: bool = False, where: str = "") -> bytes | None:
    """Return the bytes of the regular file *path*, None when there is none.

    Of a file longer than *limit* bytes: its first and last parts with a mark between, which names
    *where* the rest is. Anything but a regular file (a pipe that would block for ever; a link,
    without *follow*) counts as absent.
    """
    # O_NONBLOCK: to open a FIFO without a writer would block for ever. It changes nothing for a
    # regular file.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return read_part(descriptor, 0, limit, where=where)
    except OSError:
        return None
    finally:
        os.close(descriptor)


def read_part(descriptor: int, start: int, limit: int, *, where: str = "") -> bytes:
    """Return the content of an open regular file from offset *start*, at most about *limit* bytes.

    A longer one gives its first quarter and its last three, with a mark between them.
    """
    size = os.fstat(descriptor).st_size - start
    if size <= limit:
        return read_range(descriptor, start, max(size, 0))
    head = limit // 4
    tail = limit - head
    mark = left_out_mark(size - limit, where)
    return (
        read_range(descriptor, start, head)
        + mark
        + read_range(descriptor, start + size - tail, tail)
    )


def left_out_mark(count: int, where: str = "") -> bytes:
    """Return the mark in place of *count* bytes; *where* names their place, if any."""
    clause = b"; " + os.fsencode(where) if where else b""
    return b"\n[... %d bytes are left out here%s ...]\n" % (count, clause)


def read_range(descriptor: int, start: int, count: int) -> bytes:
    """Return the *count* bytes of an open file from offset *start*, fewer where it ends."""
    parts = []
    while count > 0:
        # pread leaves the offset alone: a capture's is shared with the pump, which writes at it.
        part = os.pread(descriptor, min(count, 1 << 20), start)
        if not part:
            break
        parts.append(part)
        start += len(part)
        count -= len(part)
    return b"".join(parts)


def allocate(descriptor: int, size: int) -> None:
    """Reserve *size* bytes on the disk for an open, empty file. Raises OSError when it is full."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        # The filesystem cannot reserve. glibc emulates it then, other C libraries do not.
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
        write_all(descriptor, b"\0" * size)


def remove(path: str) -> None:
    """Remove the file *path*, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
