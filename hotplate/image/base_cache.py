"""The cached base systems that diskimage-builder keeps, made safe to rely on.

diskimage-builder writes its tarball in place, takes it as good when it is there, and keeps it for
ever.  So a mark beside it says that it is whole, it is made anew when it is old, and only one
build at a time makes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from types import TracebackType

from hotplate.errors import HostError

DAYS = 7
"""Days after which a base system is made anew, so that it does not fall behind."""


class BaseCache:
    """One tarball; a context manager around the build that uses or makes it.

    :param tarball: where diskimage-builder keeps it.
    :param refresh: whether it may be made anew because it is old.
    """

    def __init__(self, tarball: Path, *, refresh: bool) -> None:
        self.tarball = tarball
        self.refresh = refresh
        self.making = False
        self._mark = tarball.with_name(f"{tarball.name}.whole")
        self._lock = -1

    def __enter__(self) -> BaseCache:
        if self._good():
            return self
        # Another build may be making it: wait for that one, and look again.
        try:
            self.tarball.parent.mkdir(parents=True, exist_ok=True)
            lock = self.tarball.with_name(f"{self.tarball.name}.lock")
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise HostError(
                f'the cache "{self.tarball.parent}" cannot be written to: {error.strerror}',
                hint="name another one with --cache",
            ) from error
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if self._good():
            self._unlock()
        else:
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
        """The base system is behind us: what is there now is whole, and others may use it."""
        if self.making:
            with contextlib.suppress(OSError):
                if self.tarball.exists():
                    self._mark.touch()
            self._unlock()

    def _good(self) -> bool:
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
