"""Remove or copy a directory tree, with modes and times."""

from __future__ import annotations

import os
import stat

CHUNK = 1 << 20
#: Maximum nesting of directories; a cache has two levels.
DEPTH = 32


def remove(path: str, depth: int = DEPTH) -> None:
    """Remove *path*, if it exists; links are removed, not followed. Raises OSError."""
    try:
        is_directory = stat.S_ISDIR(os.lstat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_directory or depth == 0:
        os.unlink(path)
        return
    with os.scandir(path) as entries:
        for entry in entries:
            remove(entry.path, depth - 1)
    os.rmdir(path)


def copy(source: str, target: str, depth: int = DEPTH) -> None:
    """Copy the directory *source* to *target*, which must not exist. Raises OSError.

    Links are followed. Special files, and files that vanish meanwhile, are skipped.
    """
    os.makedirs(target, 0o700)
    with os.scandir(source) as entries:
        for entry in entries:
            place = os.path.join(target, entry.name)
            try:
                if entry.is_dir() and depth > 0:
                    copy(entry.path, place, depth - 1)
                elif entry.is_file():
                    _copy_file(entry.path, place)
            except FileNotFoundError:
                continue
    # Last: each entry changes the directory's time, and its mode may forbid writing.
    _copy_status(os.stat(source), target)


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb") as reader:
        status = os.fstat(reader.fileno())
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as writer:
            while True:
                data = reader.read(CHUNK)
                if not data:
                    break
                writer.write(data)
    _copy_status(status, target)


def _copy_status(status: os.stat_result, target: str) -> None:
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
