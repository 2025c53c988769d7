"""Traces of a hook's run on this host: changed files, files and processes that hold a text.

Files are changed when their inode or time of change (st_ctime, which no program can set back;
inode(7)) differs between two looks. Each look goes from the top down, within bounds. Changes by
other programs are listed too; files deeper than the bounds allow are not.

A process is the hook's when its environment contains the scratch directory of its run (proc(5));
the runner sets that as ``HEAT_CONFIG_CAPTURE``.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

#: The default directories to look below.
ROOTS = tuple(map(Path, ("/etc", "/usr/local", "/var/lib", "/root", "/opt", "/srv")))

ENTRIES = 200_000
#: Bounds of one look.
SECONDS = 5.0

#: The most changes listed.
LISTED = 200

#: The most bytes searched in a file.
FILE_LIMIT = 64 << 20

#: The most files searched.
FILES = 20_000

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
        # A path is known by its own listing, or by that of its parent.
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
        # A directory that does not exist has no device, and is not noted.
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
                # It was removed since it was listed.
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
    # Removed, or not readable for this user: without entries.
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


def files_with(text: str, places: Iterable[Path]) -> Iterator[Path]:
    """Yield the files below some directories, or among some files, that contain a text."""
    wanted = text.encode()
    left = FILES
    for place in places:
        for path in _files(place):
            left -= 1
            if left < 0:
                return
            if _holds(path, wanted):
                yield path


def _files(place: Path) -> Iterator[Path]:
    if not place.is_dir():
        yield place
        return
    for folder, _, names in os.walk(place):
        for name in sorted(names):
            yield Path(folder, name)


def _holds(path: Path, wanted: bytes) -> bool:
    """Return True when a regular file contains some bytes; links and FIFOs are not followed."""
    try:
        # A link may lead anywhere, and the open of a FIFO would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        # mmap(2) refuses a length of 0.
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return False
        # ValueError: the file has become shorter.
        with contextlib.suppress(OSError, ValueError):
            size = min(status.st_size, FILE_LIMIT)
            with mmap.mmap(stream.fileno(), size, access=mmap.ACCESS_READ) as content:
                return content.find(wanted) >= 0
    return False


def open_to_all(path: Path, top: Path) -> bool:
    """Return True when every user can read a file, by the modes below a directory."""
    try:
        if not path.lstat().st_mode & stat.S_IROTH:
            return False
        between = path.parent.relative_to(top).parts if path.is_relative_to(top) else ()
        folder = top
        for part in between:
            folder /= part
            if not folder.stat().st_mode & stat.S_IXOTH:
                return False
    except OSError:
        return False
    return True


def command_lines_with(text: str, scratch: Path) -> list[str]:
    """Return the programs of a run with a text in their arguments."""
    wanted = text.encode()
    programs = []
    for pid in processes(scratch):
        words = _read_process(pid, "cmdline").split(b"\0")
        if any(wanted in word for word in words):
            programs.append(os.fsdecode(words[0]))
    return programs


def processes(scratch: Path) -> list[int]:
    """Return the ids of a scratch directory's processes."""
    mark = b"HEAT_CONFIG_CAPTURE=" + os.fsencode(scratch) + b"/"
    return [
        int(each.name)
        for each in Path("/proc").iterdir()
        if each.name.isdigit() and mark in _read_process(int(each.name), "environ")
    ]


def held_open(paths: set[str], scratch: Path) -> set[str]:
    """Return those files that processes outside a scratch directory's runs have open."""
    own = set(processes(scratch)) if paths else set()
    held = set()
    for each in Path("/proc").iterdir() if paths else ():
        if each.name.isdigit() and int(each.name) not in own:
            # The process has ended, or belongs to another user.
            with contextlib.suppress(OSError):
                for descriptor in (each / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        held.add(str(descriptor.readlink()))
    return paths & held


def _read_process(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def stay_behind(scratch: Path, seconds: float) -> list[str]:
    """End a scratch directory's processes that still run after some time; return their names."""
    end = time.monotonic() + seconds
    stayed = []
    for pid in processes(scratch):
        name = _read_process(pid, "comm").decode("utf-8", "replace").strip()
        try:
            # A descriptor, because the id may be another process's by the time of the kill.
            descriptor = os.pidfd_open(pid)
        # It has ended already.
        except OSError:
            continue
        try:
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                stayed.append(name)
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)
    return stayed
