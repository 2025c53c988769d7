"""Hashes of files and directories; those of large files are cached until they change."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from pathlib import Path


def hash_file(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def read_regular(file: Path, limit: int) -> bytes:
    """Return the bytes of a small file that may come from a stranger.

    :param limit: its maximum size in bytes.
    :raises OSError: it does not exist, is larger, or is a FIFO, a device, or anything else that is
        not a regular file; none of these is waited for.
    """
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(f'"{file}" is not a regular file')
        data = stream.read(limit + 1)
        if len(data) > limit:
            raise OSError(f'"{file}" has more than {limit} bytes')
        return data


def hash_directory(directory: Path) -> str:
    """Return a SHA-256 over the names, modes and contents of all files under a directory."""
    total = hashlib.sha256()
    for file in sorted(directory.rglob("*")):
        if "__pycache__" in file.parts or not file.is_file():
            continue
        mode = "x" if os.access(file, os.X_OK) else "-"
        total.update(f"{file.relative_to(directory)}\0{mode}\0{hash_file(file)}\n".encode())
    return total.hexdigest()


def sha256_of(file: Path, cache: Path | None = None) -> str:
    """Return the SHA-256 of a file, in hexadecimal.

    :param cache: a directory for the result, or None. The key is device, inode, size and time of
        change (ctime, which nobody can set); an entry that cannot be read or written is computed
        again.
    """
    if cache is None:
        return hash_file(file)
    status = file.stat()
    parts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    note = cache / "sha256" / "-".join(map(str, parts))
    with contextlib.suppress(OSError, UnicodeDecodeError):
        digest = read_regular(note, 100).decode().strip()
        if len(digest) == 64:
            return digest
    value = hash_file(file)
    if file.stat().st_ctime_ns == status.st_ctime_ns:
        with contextlib.suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            temporary = note.with_name(f"{note.name}.{os.getpid()}")
            temporary.write_text(value + "\n")
            temporary.replace(note)
    return value
