"""Wait until a file is saved, by the kernel's notice of changes in its directory.

Python's standard library has ``F_NOTIFY`` (fcntl(2), "File and directory change notification"),
but not inotify(7). It reports that something in the directory has changed; the file is read to
find whether it has changed, and to which contents.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from hotplate.errors import HostError, UsageError

SETTLED = 0.1
"""Seconds without a change after which a save is complete: editors write in several steps."""

_CHANGES = (
    fcntl.DN_MODIFY | fcntl.DN_CREATE | fcntl.DN_RENAME | fcntl.DN_ATTRIB | fcntl.DN_MULTISHOT
)
_SIGNAL = signal.SIGIO


class Saves:
    """Reports when a file gets other contents; a context manager, for the main thread.

    The directory is watched from the start, so that no save is lost while the last one is
    processed.

    ::

        with Saves(path) as saves:
            while True:
                use(saves.contents)
                saves.wait()

    :param path: the file; an editor may replace it.
    :ivar contents: of the file, as of the start or the last :meth:`wait`.
    :raises UsageError: when it cannot be read.
    :raises HostError: when the kernel gives no notice.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._owned = ExitStack()
        self.contents = b""

    def __enter__(self) -> Self:
        with ExitStack() as owned:
            self._woken, waker = (owned.enter_context(each) for each in socket.socketpair())
            self._woken.setblocking(False)
            waker.setblocking(False)
            # The signal may reach any thread: it writes a byte, which wakes select().
            waking = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
            owned.callback(signal.set_wakeup_fd, waking)
            # Its default action is to end the program.
            before = signal.signal(_SIGNAL, lambda *_: None)
            owned.callback(signal.signal, _SIGNAL, before)
            self._watch(owned)
            self.contents = self._read()
            self._owned = owned.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    def wait(self) -> bytes:
        """Wait until the file has other contents; return them."""
        while True:
            self._is_woken(None)
            while self._is_woken(SETTLED):
                pass
            try:
                contents = self._read()
            except UsageError:
                # Between removal and replacement, or during a change: another notice will follow.
                continue
            if contents != self.contents:
                self.contents = contents
                return contents

    def _is_woken(self, seconds: float | None) -> bool:
        """Wait for a signal; return True when one came in time."""
        ready, _, _ = select.select([self._woken], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(4096):
                pass
        return bool(ready)

    def _watch(self, owned: ExitStack) -> None:
        folder = self._path.resolve().parent
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            owned.callback(os.close, descriptor)
            fcntl.fcntl(descriptor, fcntl.F_NOTIFY, _CHANGES)
        except OSError as error:
            raise HostError(
                f'the directory "{folder}" cannot be watched: {error.strerror}',
                hint="its kernel or its file system gives no notice of changes; leave out --watch",
            ) from error

    def _read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except OSError as error:
            raise UsageError(f'"{self._path}" cannot be read: {error.strerror}') from error
