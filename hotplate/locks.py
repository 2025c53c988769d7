"""Locks that the kernel gives back, whatever ends their owner.

A directory is locked itself (flock(2)), so that no lock file is left beside it or removed under
somebody who waits for it.  Who removes a directory holds it exclusively meanwhile; who gets a lock
on one that was removed is told so.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class InUse(Exception):
    """Another process holds a lock that does not go with the one that was asked for."""


@contextlib.contextmanager
def shared(directory: Path) -> Iterator[None]:
    """Hold a directory with others; nobody has it exclusively meanwhile.

    Waits for one who does.

    :raises FileNotFoundError: when it is not there, or was removed while this waited.
    """
    with _locked(directory, fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def exclusive(directory: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a directory alone.

    :param wait: for those who have it; without it they are an error.
    :raises InUse: when somebody else has it and ``wait`` is false.
    :raises FileNotFoundError: as for :func:`shared`.
    """
    with _locked(directory, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB)):
        yield


@contextlib.contextmanager
def _locked(directory: Path, operation: int) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, operation)
        except BlockingIOError:
            raise InUse(f'"{directory}" is in use') from None
        # It may have been removed, and made anew, between the two calls.
        if not os.path.samestat(os.fstat(descriptor), directory.stat()):
            raise FileNotFoundError(f'"{directory}" was removed')
        yield
    finally:
        os.close(descriptor)
