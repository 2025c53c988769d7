"""The lock file, which keeps two runs of the phases apart."""

from __future__ import annotations

import fcntl
import os
import time

from heat_config import files

LOCK_FILE = "/var/run/os-refresh-config.lock"


class Lock:
    """A file that is locked during a run; its text names the holder."""

    def __init__(self, path: str = LOCK_FILE) -> None:
        self._path = path
        self._descriptor = -1

    def take(self) -> None:
        """Lock the file; raises OSError, with EAGAIN when another process holds it."""
        # No O_TRUNC: until the lock is held, the text is that of another process.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self._path, flags, files.PRIVATE_FILE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            text = f"Locked by pid=={os.getpid()} at {time.strftime('%Y-%m-%d %H:%M:%S')}\n"
            files.write_all(descriptor, text.encode())
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock."""
        # Before the unlock: after it, another process may have written its text.
        os.ftruncate(self._descriptor, 0)
        # Unlock explicitly: a fork that lives on has the same open file.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)
