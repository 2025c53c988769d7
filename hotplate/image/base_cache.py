"""Safe use of the base systems that diskimage-builder caches.

diskimage-builder writes its tarball in place, assumes that it is good when it exists, and keeps it
for ever. So a mark beside it says that it is whole, it is made again when it is old, and only one
build at a time makes it, while no other unpacks it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path

from hotplate import locks
from hotplate.errors import HostError

#: Days after which a base system is made again, so that it stays up to date.
DAYS = 7

#: Days after which the next build removes an unused base system.
UNUSED_DAYS = 30


def prune(root: Path, *, now: float) -> None:
    """Remove caches of builds that nobody runs any more, unless a build uses them.

    :param root: has a directory for each kind of build, whose time is that of the last such build.
    """
    for directory in root.iterdir():
        with contextlib.suppress(OSError, locks.InUse):
            if now - directory.stat().st_mtime > UNUSED_DAYS * 86400:
                with locks.exclusive(directory, wait=False):
                    shutil.rmtree(directory, ignore_errors=True)


class BaseCache:
    """One tarball; a context manager around the build that uses or makes it.

    :param tarball: its path in diskimage-builder's cache.
    :param refresh: whether an old one may be made again.
    """

    def __init__(self, tarball: Path, *, refresh: bool) -> None:
        self.tarball = tarball
        self.refresh = refresh
        self.making = False
        self._mark = tarball.with_name(f"{tarball.name}.whole")
        self._lock = -1

    def __enter__(self) -> BaseCache:
        try:
            self.tarball.parent.mkdir(parents=True, exist_ok=True)
            lock = self.tarball.with_name(f"{self.tarball.name}.lock")
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise HostError(
                f'the cache "{self.tarball.parent}" cannot be written to: {error.strerror}',
                hint="name another one with --cache",
            ) from error
        while True:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            if self.is_good:
                return self
            # Another build may be making it, or unpacking the old one: wait for it, and check
            # again.
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if not self.is_good:
                self.making = True
                self.tarball.unlink(missing_ok=True)
                self._mark.unlink(missing_ok=True)
                return self

    def __exit__(self, *_: object) -> None:
        self._unlock()

    def settle(self) -> None:
        """Release the complete base system to other builds."""
        if self.making:
            with contextlib.suppress(OSError):
                if self.tarball.exists():
                    self._own()
                    self._mark.touch()
        self._unlock()

    def _own(self) -> None:
        """Take ownership: diskimage-builder writes it as root, also for an ordinary user."""
        if self.tarball.stat().st_uid != os.geteuid():
            temporary = self.tarball.with_name(f".{self.tarball.name}.new")
            shutil.copyfile(self.tarball, temporary)
            temporary.replace(self.tarball)

    @property
    def is_good(self) -> bool:
        """Return whether it exists, is whole, and is not too old."""
        try:
            age = time.time() - self.tarball.stat().st_mtime
        except OSError:
            return False
        return self._mark.exists() and (age < DAYS * 86400 or not self.refresh)

    def _unlock(self) -> None:
        self.making = False
        if self._lock != -1:
            os.close(self._lock)
            self._lock = -1
