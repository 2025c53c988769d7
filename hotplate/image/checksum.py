"""Hashes of large files, remembered for as long as the file has not been touched."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path


def hash_file(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def sha256_of(file: Path, cache: Path | None = None) -> str:
    """The SHA-256 of a file, in hexadecimal.

    :param cache: a directory to remember it in, or None.  It is found again by device, inode,
        size and time of change (ctime, which nobody can set), and what cannot be read or written
        there is computed anew.
    """
    if cache is None:
        return hash_file(file)
    status = file.stat()
    parts = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    note = cache / "sha256" / "-".join(map(str, parts))
    with contextlib.suppress(OSError, UnicodeDecodeError):
        known = note.read_text().strip()
        if len(known) == 64:
            return known
    value = hash_file(file)
    if file.stat().st_ctime_ns == status.st_ctime_ns:
        with contextlib.suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            temporary = note.with_name(f"{note.name}.{os.getpid()}")
            temporary.write_text(value + "\n")
            temporary.replace(note)
    return value
