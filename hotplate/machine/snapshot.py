"""The state of a machine in files: save it, continue from it, and lend its memory to others.

The state is passed through a descriptor that QEMU gets over its monitor, so that no path is quoted
and QEMU starts no program. The memory may be apart from it, in a file without a name. Lent memory
is sealed (memfd_create(2), fcntl(2) ``F_ADD_SEALS``): QEMU maps it privately, and even a
compromised QEMU cannot change it for another guest.

Source: QEMU's ``docs/devel/migration.rst``, its ``memory-backend-file`` and its migration
capability ``x-ignore-shared``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

from hotplate.errors import HostError, MachineLostError
from hotplate.machine.qmp import Qmp
from hotplate.timing.deadline import Deadline

SECONDS = 120.0

SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
MEMFD_FLAGS = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
#: Bytes of one sendfile(2), which moves 0x7ffff000 at most.
MAX_AT_ONCE = 1 << 30

#: Waits for the end of a migration; returns QEMU's ``completed`` or ``failed``.
Wait = Callable[[Deadline], str]


def save(qmp: Qmp, path: Path, wait: Wait, *, apart: bool = False) -> None:
    """Stop the guest and write its memory and devices to ``path``, whole or not at all.

    :param apart: leave out its memory, which is in a file shared with QEMU.
    :raises HostError: when the file cannot be written.
    """
    # Memory, devices and the disk have to be of the same instant.
    qmp.execute("stop")
    with _written(path, "state") as target:
        status = _move(qmp, wait, target, "migrate", apart=apart)
        if status != "completed" or os.fstat(target).st_size == 0:
            # _written() removes the file and raises it as HostError.
            raise OSError(0, "QEMU did not complete it")


def restore(qmp: Qmp, path: Path, wait: Wait, *, apart: bool = False) -> None:
    """Load a state into a QEMU that was started with ``-incoming defer``, and let it run.

    :param apart: the state has no memory: QEMU got that as a file.
    :raises MachineLostError: when the state does not fit this machine.
    """
    try:
        with path.open("rb") as stream:
            status = _move(qmp, wait, stream.fileno(), "migrate-incoming", apart=apart)
    except OSError as error:
        raise MachineLostError(f'"{path}" cannot be read: {error.strerror}') from error
    if status != "completed":
        raise MachineLostError(f'the saved state "{path}" does not fit this machine')
    # It was saved while stopped, so it is paused now.
    qmp.execute("cont")


def _move(qmp: Qmp, wait: Wait, descriptor: int, command: str, *, apart: bool) -> str:
    """Run one of the two migration commands on a descriptor and wait for its end."""
    # Without "events" QEMU sends no MIGRATION, for which the caller waits. "x-ignore-shared" leaves
    # out memory in a file that is mapped shared.
    wanted = {"events": True, "x-ignore-shared": apart}
    capabilities = [{"capability": name, "state": state} for name, state in wanted.items()]
    qmp.execute("migrate-set-capabilities", capabilities=capabilities)
    # The default limit of 128 MiB/s is for networks.
    qmp.execute("migrate-set-parameters", max_bandwidth=1 << 40)
    qmp.execute("getfd", descriptor=descriptor, fdname="state")
    qmp.execute(command, uri="fd:state")
    when = "saved" if command == "migrate" else "restored"
    return wait(Deadline(SECONDS, f"the machine's state while it was {when}"))


@contextlib.contextmanager
def _written(path: Path, what: str) -> Iterator[int]:
    """Write a file of ours alone, whole or not at all; yield its descriptor.

    :param what: the part of the machine that it has.
    :raises HostError: when it cannot be written.
    """
    temporary = path.with_name(path.name + ".new")
    try:
        # Another process may have been killed while it wrote one.
        temporary.unlink(missing_ok=True)
        target = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            yield target
        finally:
            os.close(target)
        temporary.rename(path)
    except OSError as error:
        raise HostError(
            f'the machine\'s {what} could not be written to "{path}": {error.strerror}',
            hint=f"df -h {shlex.quote(str(path.parent))}",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


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
        descriptor = os.memfd_create("guest-memory", MEMFD_FLAGS)
        os.ftruncate(descriptor, mib << 20)
        return cls(descriptor, shared=True)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Return memory from a file of :meth:`save`, which any number of guests may borrow.

        :raises MachineLostError: when it cannot be read.
        """
        descriptor = os.memfd_create("guest-memory", MEMFD_FLAGS)
        try:
            with path.open("rb") as source:
                os.ftruncate(descriptor, os.fstat(source.fileno()).st_size)
                _copy(source.fileno(), descriptor)
            # Only now: F_SEAL_WRITE would refuse our own writes.
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
        with _written(path, "memory") as target:
            os.ftruncate(target, os.fstat(self.descriptor).st_size)
            _copy(self.descriptor, target)

    @property
    def used_mib(self) -> int:
        """Return how much of the host's memory it uses, in MiB."""
        # st_blocks counts units of 512 bytes, whatever the file system's are (stat(2)).
        return os.fstat(self.descriptor).st_blocks * 512 >> 20

    def close(self) -> None:
        """Release it; a QEMU that has mapped it keeps it."""
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _copy(source: int, target: int) -> None:
    """Copy the data of a sparse file into a file of the same length that is one hole."""
    for begin, end in _parts(source):
        os.lseek(target, begin, os.SEEK_SET)
        at = begin
        while at < end:
            sent = os.sendfile(target, source, at, min(end - at, MAX_AT_ONCE))
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
