"""Locks that the kernel releases, however their owner ends.

A directory itself is locked (flock(2)), so that no lock file is left beside it, or removed while
another process waits for it. The remover of a directory holds it exclusively meanwhile; a process
that gets a lock on a removed directory gets an error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

#: How often a directory that is removed at once is made again, before that is an error.
TRIES = 100


#: The errors of a file system without locks; there nothing is locked.
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


class InUse(Exception):
    """Another process holds a conflicting lock."""


@contextlib.contextmanager
def shared(directory: Path, *, make: bool = False) -> Iterator[None]:
    """Hold a directory together with others, while nobody holds it exclusively.

    Waits for an exclusive holder.

    :param make: make it when it does not exist, with its parents.
    :raises OSError: when it cannot be made or opened.
    :raises FileNotFoundError: when it does not exist, or was removed while this waited.
    """
    with _held(directory, fcntl.LOCK_SH, make=make):
        yield


@contextlib.contextmanager
def exclusive(directory: Path, *, wait: bool = True, make: bool = False) -> Iterator[int]:
    """Hold a directory alone; yield the descriptor that holds it.

    A process that inherits the descriptor holds the directory as well, after this one too.

    :param wait: wait for other holders; otherwise they are an error.
    :param make: as for :func:`shared`; a new directory is private (0700).
    :raises InUse: when another process holds it and ``wait`` is false.
    :raises OSError: as for :func:`shared`.
    """
    with _held(
        directory, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), make=make, mode=0o700
    ) as held:
        yield held


def is_held(directory: Path) -> bool:
    """Return True when another process holds a directory; False when there is none."""
    try:
        with exclusive(directory, wait=False):
            return False
    except InUse:
        return True
    except OSError:
        return False


@contextlib.contextmanager
def _held(directory: Path, operation: int, *, make: bool, mode: int = 0o777) -> Iterator[int]:
    with contextlib.ExitStack() as held:
        for left in reversed(range(TRIES if make else 1)):
            try:
                if make:
                    directory.mkdir(mode=mode, parents=True, exist_ok=True)
                descriptor = held.enter_context(_locked(directory, operation))
                break
            except (FileNotFoundError, FileExistsError):
                # mkdir raises the latter for a directory that is removed while it checks for it.
                if not left:
                    raise
        yield descriptor


@contextlib.contextmanager
def _locked(directory: Path, operation: int) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            raise InUse(f'"{directory}" is in use') from None
        except OSError as error:
            # A build on such a file system matters more than the exclusion of a second one.
            if error.errno not in NO_LOCKS:
                raise
        # It may have been removed, and made again, between the two calls.
        if not os.path.samestat(os.fstat(descriptor), directory.stat()):
            raise FileNotFoundError(f'"{directory}" was removed')
        yield descriptor
    finally:
        os.close(descriptor)


def has_holder(file: Path) -> bool:
    """Return True when a process locks a part of a file, as QEMU does for each disk in use.

    Source: fcntl(2), ``F_OFD_GETLK``; QEMU's docs/system/images.rst, "Disk image file locking".
    """
    # struct flock: type, whence, start, length and process, which has to be 0; padded to its
    # alignment.
    layout = "@hhqqi0q"
    question = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, question)
    finally:
        os.close(descriptor)
    return bool(struct.unpack(layout, answer)[0] != fcntl.F_UNLCK)
