"""The files of one machine, opened here and handed to QEMU as descriptors.

QEMU runs as a user that can open none of them by name, and need not: even a compromised QEMU
reaches only its own files. Source: qemu(1), ``-add-fd`` and ``/dev/fdset``.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hotplate.errors import HostError


class HandedFiles:
    """Collects descriptors for one start of QEMU; a context manager that closes our copies.

    :param first: the number of the first of them in QEMU.
    :param directory: for copies of files that QEMU has to reopen but could not.
    """

    def __init__(self, *, first: int, directory: Path) -> None:
        self.descriptors: list[int] = []
        self.options: list[str] = []
        self._first = first
        self._directory = directory
        self._sets = 0

    def __enter__(self) -> HandedFiles:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def block(self, path: Path, *, write: bool) -> str:
        """Hand over the file of a block device; return its name for QEMU.

        :param write: also for writing.
        :raises HostError: when it cannot be opened.
        """
        self._sets += 1
        # QEMU opens a disk for reading first, and again when it writes: from the set it takes the
        # descriptor with the wanted access mode.
        for mode in (os.O_RDONLY, os.O_RDWR) if write else (os.O_RDONLY,):
            number = self._hand(_open(path, mode))
            self.options += ["-add-fd", f"fd={number},set={self._sets}"]
        return f"/dev/fdset/{self._sets}"

    def blob(self, path: Path) -> str:
        """Hand over a file that QEMU reads whole, such as a kernel; return its name for QEMU.

        :raises HostError: when it cannot be opened.
        """
        descriptor = _open(path, os.O_RDONLY)
        # This name makes QEMU reopen the file with its own rights.
        if os.geteuid() == 0 and not os.fstat(descriptor).st_mode & stat.S_IROTH:
            descriptor = self._readable_copy(descriptor)
        return f"/proc/self/fd/{self._hand(descriptor)}"

    def memory(self, descriptor: int) -> str:
        """Hand over a guest's memory, which QEMU reopens; return its name for QEMU."""
        return f"/proc/self/fd/{self._hand(os.dup(descriptor))}"

    def _hand(self, descriptor: int) -> int:
        self.descriptors.append(descriptor)
        return self._first + len(self.descriptors) - 1

    def _readable_copy(self, descriptor: int) -> int:
        """Return an unnamed copy that a process with its descriptor may reopen."""
        with (
            os.fdopen(descriptor, "rb") as source,
            tempfile.TemporaryFile(dir=self._directory) as copy,
        ):
            shutil.copyfileobj(source, copy)
            copy.flush()
            # QEMU, as another user, reopens it by /proc/self/fd, which checks the mode of the file.
            os.fchmod(copy.fileno(), 0o444)
            return os.open(f"/proc/self/fd/{copy.fileno()}", os.O_RDONLY | os.O_CLOEXEC)


def _open(path: Path, mode: int) -> int:
    try:
        return os.open(path, mode | os.O_CLOEXEC)
    except OSError as error:
        raise HostError(
            f'the file "{path}" of a machine cannot be opened: {error.strerror}',
            hint=f"ls -l {shlex.quote(str(path))}",
        ) from error


def backing_options(names: Sequence[tuple[str, str]]) -> str:
    """Return the options of a drive that set its backing files, independent of its header.

    :param names: (name, format) of each backing file, the next one first.
    """
    options = ""
    prefix = ""
    for name, kind in names:
        # backing.driver is the next file's, backing.backing.driver that of the one behind it.
        prefix += "backing."
        options += f",{prefix}driver={kind},{prefix}file.driver=file,{prefix}file.filename={name}"
    return options
