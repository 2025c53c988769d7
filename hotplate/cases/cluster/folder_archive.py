"""The folder of a run as one piece of data, to return it from a worker."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

MOST_BYTES = 512 * 1024 * 1024
"""The largest size of a returned folder, in bytes before compression; its largest files are left
out.
"""

LEFT_OUT = "left-out.txt"
"""The file with the names of the files left out, one a line."""


def pack(folder: Path, *, most: int = MOST_BYTES) -> bytes:
    """Return all files of a folder, compressed.

    :param most: bytes; beyond that the largest files are only named.
    """
    files = sorted(
        (each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()),
        key=lambda each: each.stat().st_size,
    )
    left_out: list[str] = []
    room = most
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz", compresslevel=1) as archive:
        for file in files:
            size = file.stat().st_size
            name = str(file.relative_to(folder))
            if size > room:
                left_out.append(f"{name}: {size} bytes\n")
                continue
            room -= size
            archive.add(file, arcname=name, recursive=False, filter=_without_owner)
        if left_out:
            _add_text(archive, LEFT_OUT, "".join(left_out))
    return target.getvalue()


def unpack(data: bytes, folder: Path) -> None:
    """Write the files of :func:`pack` into an existing folder.

    Paths outside the folder, and special files such as devices, are refused (PEP 706).

    :raises OSError: when they cannot be written.
    :raises tarfile.TarError: when it is no archive of :func:`pack`.
    """
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        archive.extractall(folder, filter="data")


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode &= 0o700
    return member


def _add_text(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    archive.addfile(member, io.BytesIO(data))
