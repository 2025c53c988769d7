"""The cached base systems that diskimage-builder keeps, made safe to rely on.

diskimage-builder writes its tarball in place, takes it as good when it is there, and keeps it for
ever.  So a mark beside it says that it is whole, it is made again when it is old, and only one
build at a time makes it, while no other unpacks it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import time
from pathlib import Path
from types import TracebackType

from hotplate import locks
from hotplate.errors import HostError

DAYS = 7
"""Days after which a base system is made again, so that it does not fall behind."""

UNUSED_DAYS = 30
"""Days after which what no build has used is removed by the next one."""


def prune(root: Path, *, now: float) -> None:
    """Remove what was cached for builds that nobody does any more, unless a build uses it.

    :param root: has a directory for each kind of build; its time is that of the last such build.
    """
    for directory in root.iterdir():
        with contextlib.suppress(OSError, locks.InUse):
            if now - directory.stat().st_mtime > UNUSED_DAYS * 86400:
                with locks.exclusive(directory, wait=False):
                    shutil.rmtree(directory, ignore_errors=True)


class BaseCache:
    """One tarball; a context manager around the build that uses or makes it.

    :param tarball: where diskimage-builder keeps it.
    :param refresh: whether it may be made again because it is old.
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
            # Another build may be making it, or unpack the old one: wait for it, and look again.
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if not self.is_good:
                self.making = True
                self.tarball.unlink(missing_ok=True)
                self._mark.unlink(missing_ok=True)
                return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._unlock()

    def settle(self) -> None:
        """Let others use the base system, which is complete now."""
        if self.making:
            with contextlib.suppress(OSError):
                if self.tarball.exists():
                    self._own()
                    self._mark.touch()
        self._unlock()

    def _own(self) -> None:
        """Make it ours: diskimage-builder writes it as root, also for an ordinary user."""
        if self.tarball.stat().st_uid != os.geteuid():
            temporary = self.tarball.with_name(f".{self.tarball.name}.new")
            shutil.copyfile(self.tarball, temporary)
            temporary.replace(self.tarball)

    @property
    def is_good(self) -> bool:
        """Whether it is there, whole, and not too old."""
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
