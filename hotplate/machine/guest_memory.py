"""Memory of a guest in a file without a name: saved from a running QEMU, and lent to others.

Lent memory is sealed (memfd_create(2), fcntl(2) ``F_ADD_SEALS``): QEMU maps it privately, and even
a compromised QEMU cannot change it for another guest. Source of the method: QEMU's
``memory-backend-file`` and its migration capability ``x-ignore-shared``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from hotplate.errors import HostError, MachineLostError

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
MOST_AT_ONCE = 1 << 30


class GuestMemory:
    """The memory of a guest; a context manager that releases it.

    :ivar shared: whether QEMU writes into it; otherwise each QEMU keeps its changes to itself.
    """

    def __init__(self, descriptor: int, *, shared: bool) -> None:
        self.descriptor = descriptor
        self.shared = shared

    @classmethod
    def empty(cls, mib: int) -> Self:
        """Return memory for a guest that will be saved.

        :param mib: its size in MiB.
        """
        descriptor = _without_name()
        os.ftruncate(descriptor, mib << 20)
        return cls(descriptor, shared=True)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return memory from a file of :meth:`save`, which any number of guests may borrow.

        :raises MachineLostError: when it cannot be read.
        """
        descriptor = _without_name()
        try:
            with path.open("rb") as source:
                os.ftruncate(descriptor, os.fstat(source.fileno()).st_size)
                _copy(source.fileno(), descriptor)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        except OSError as error:
            os.close(descriptor)
            raise MachineLostError(f'"{path}" cannot be read: {error.strerror}') from error
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor, shared=False)

    def save(self, path: Path) -> None:
        """Write it to a file, whole or not at all; unused memory is a hole there.

        :raises HostError: when the file cannot be written.
        """
        temporary = path.with_name(path.name + ".new")
        try:
            with open(temporary, "xb", opener=_for_us_alone) as target:
                os.ftruncate(target.fileno(), os.fstat(self.descriptor).st_size)
                _copy(self.descriptor, target.fileno())
            temporary.rename(path)
        except OSError as error:
            raise HostError(
                f'the machine\'s memory could not be written to "{path}": {error.strerror}',
                hint=f"df -h {path.parent}",
            ) from error
        finally:
            temporary.unlink(missing_ok=True)

    @property
    def used_mib(self) -> int:
        """Return how much of the host's memory it uses, in MiB."""
        return os.fstat(self.descriptor).st_blocks * 512 >> 20

    def close(self) -> None:
        """Release it; a QEMU that has mapped it keeps it."""
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _without_name() -> int:
    return os.memfd_create("guest-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def _for_us_alone(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def _copy(source: int, target: int) -> None:
    """Copy the data of a sparse file into a file of the same length that is one hole."""
    for begin, end in _parts(source):
        os.lseek(target, begin, os.SEEK_SET)
        at = begin
        while at < end:
            sent = os.sendfile(target, source, at, min(end - at, MOST_AT_ONCE))
            if sent == 0:
                # The file was truncated meanwhile; the missing parts are zeros.
                return
            at += sent


def _parts(descriptor: int) -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of each part that is no hole (lseek(2), ``SEEK_DATA``)."""
    end = 0
    length = os.fstat(descriptor).st_size
    while end < length:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError:
            # ENXIO: only a hole is left.
            return
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, end
