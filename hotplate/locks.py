"""Locks that the kernel gives back, whatever ends their owner.

A directory is locked itself (flock(2)), so that no lock file is left beside it or removed under
somebody who waits for it.  Who removes a directory holds it exclusively meanwhile; who gets a lock
on one that was removed gets an error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

TRIES = 100
"""How often a directory is made again when it is removed at once, before that is an error."""


NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
"""What a file system says that knows no locks; on one nothing is held."""


class InUse(Exception):
    """Another process holds a lock that does not go with the one that was asked for."""


@contextlib.contextmanager
def shared(directory: Path, *, make: bool = False) -> Iterator[None]:
    """Hold a directory with others; nobody has it exclusively meanwhile.

    Waits for one who does.

    :param make: make it when it is not there, with its parents.
    :raises OSError: when it cannot be made or opened.
    :raises FileNotFoundError: when it is not there, or was removed while this waited.
    """
    with _held(directory, fcntl.LOCK_SH, make=make):
        yield


@contextlib.contextmanager
def exclusive(directory: Path, *, wait: bool = True, make: bool = False) -> Iterator[None]:
    """Hold a directory alone.

    :param wait: for those who have it; without it they are an error.
    :param make: as for :func:`shared`; what is made is private (0700).
    :raises InUse: when somebody else has it and ``wait`` is false.
    :raises OSError: as for :func:`shared`.
    """
    with _held(directory, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), make=make, mode=0o700):
        yield


@contextlib.contextmanager
def _held(directory: Path, operation: int, *, make: bool, mode: int = 0o777) -> Iterator[None]:
    with contextlib.ExitStack() as held:
        for left in reversed(range(TRIES if make else 1)):
            try:
                if make:
                    directory.mkdir(mode=mode, parents=True, exist_ok=True)
                held.enter_context(_locked(directory, operation))
                break
            except (FileNotFoundError, FileExistsError):
                # The latter is what mkdir makes of one that goes while it looks whether it is one.
                if not left:
                    raise
        yield


@contextlib.contextmanager
def _locked(directory: Path, operation: int) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            raise InUse(f'"{directory}" is in use') from None
        except OSError as error:
            # A build there is worth more than the promise that no other does the same.
            if error.errno not in NO_LOCKS:
                raise
        # It may have been removed, and made again, between the two calls.
        if not os.path.samestat(os.fstat(descriptor), directory.stat()):
            raise FileNotFoundError(f'"{directory}" was removed')
        yield
    finally:
        os.close(descriptor)


def has_holder(file: Path) -> bool:
    """Whether a process holds a lock on a part of a file, as QEMU does on each disk that it uses.

    Source: fcntl(2), ``F_OFD_GETLK``; QEMU's docs/system/images.rst, "Disk image file locking".
    """
    layout = "@hhqqi0q"
    question = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, question)
    finally:
        os.close(descriptor)
    return bool(struct.unpack(layout, answer)[0] != fcntl.F_UNLCK)
