"""Find changed files of this host, by looking before and after.

Each file's inode and time of change (st_ctime, which no program can set back; inode(7)) are noted,
from the top down, within bounds. Changes by other programs are listed too; files deeper than the
bounds allow are not.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

ROOTS = tuple(map(Path, ("/etc", "/usr/local", "/var/lib", "/root", "/opt", "/srv")))
"""The default directories to look below."""

ENTRIES = 200_000
SECONDS = 5.0
"""Bounds of one look."""

LISTED = 200
"""The most changes listed."""

Mark = tuple[int, ...]


class ChangeKind(StrEnum):
    """The kind of a file's change."""

    MADE = "made"
    CHANGED = "changed"
    REMOVED = "removed"


@dataclass(frozen=True)
class FileChange:
    """A changed file or directory.

    :param path: ends in a slash for a directory.
    """

    kind: ChangeKind
    path: str


@dataclass
class Look:
    """The state of files at one time.

    :param directories: those that were read, each with the marks of its entries by name.
    :param whole: False when the bounds were reached before all was read.
    """

    directories: dict[str, dict[str, Mark]] = field(default_factory=dict)
    whole: bool = True

    def has(self, path: str) -> bool:
        """Return True for a path that existed, read or not."""
        folder, _, name = path.rpartition("/")
        return path in self.directories or name in self.directories.get(folder, ())


def look(
    roots: Iterable[Path] = ROOTS,
    *,
    without: Sequence[Path] = (),
    entries: int = ENTRIES,
    seconds: float = SECONDS,
) -> Look:
    """Note the files below some directories, the top ones first; mounts below them are skipped.

    :param without: directories that are skipped.
    :param entries: the most files and directories noted.
    :param seconds: how long it may take.
    """
    made = Look()
    left_out = set(map(str, without))
    end = time.monotonic() + seconds
    waiting = deque((str(root), _device(str(root))) for root in roots)
    left = entries
    while waiting:
        if left <= 0 or time.monotonic() > end:
            made.whole = False
            break
        folder, device = waiting.popleft()
        if folder in made.directories or folder in left_out:
            continue
        marks, below = _read(folder, device)
        left -= len(marks) + 1
        if device is not None:
            made.directories[folder] = marks
        waiting.extend((each, device) for each in below)
    return made


def _device(path: str) -> int | None:
    try:
        return os.stat(path).st_dev  # noqa: PTH116
    except OSError:
        return None


def _read(folder: str, device: int | None) -> tuple[dict[str, Mark], list[str]]:
    """Return the marks of a directory's entries, and its subdirectories."""
    marks: dict[str, Mark] = {}
    below: list[str] = []
    try:
        with os.scandir(folder) as listed:
            for entry in listed:
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                mark: Mark = (status.st_ino, status.st_mode, status.st_uid, status.st_gid)
                if stat.S_ISDIR(status.st_mode):
                    # Its time changes with its entries, which are listed themselves.
                    if status.st_dev == device:
                        below.append(entry.path)
                else:
                    mark += (status.st_ctime_ns, status.st_size)
                marks[entry.name] = mark
    except OSError:
        pass
    return marks, below


def changes(before: Look, after: Look) -> list[FileChange]:
    """Return the differences, by path.

    A directory that only one of the looks read is skipped, unless it was made in between.
    """
    listed = []
    for folder, marks in after.directories.items():
        old_marks = before.directories.get(folder)
        if old_marks is None:
            if before.has(folder):
                continue
            old_marks = {}
        for name in old_marks.keys() | marks.keys():
            old, new = old_marks.get(name), marks.get(name)
            if old != new:
                listed.append(_change(f"{folder.rstrip('/')}/{name}", old, new))
    return sorted(listed, key=lambda each: each.path)


def _change(path: str, old: Mark | None, new: Mark | None) -> FileChange:
    if old is None:
        kind = ChangeKind.MADE
    elif new is None:
        kind = ChangeKind.REMOVED
    else:
        kind = ChangeKind.CHANGED
    is_directory = stat.S_ISDIR((new or old or (0, 0))[1])
    return FileChange(kind, path + "/" * is_directory)
