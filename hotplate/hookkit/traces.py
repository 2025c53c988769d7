"""Traces of a hook's run on this host: files and command lines with a text, and processes.

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
from collections.abc import Iterable, Iterator
from pathlib import Path

FILE_LIMIT = 64 << 20
"""The most bytes searched in a file."""

FILES = 20_000
"""The most files searched."""


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
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return False
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
            descriptor = os.pidfd_open(pid)
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
