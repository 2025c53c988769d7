"""Templates that are programs: they get the metadata as JSON, and print the content of the file.

Their environment, working directory and user are those of os-apply-config.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time

from heat_config import files, forks, process

from .errors import ApplyError

#: A program that runs longer is killed; upstream waits for it for ever.
SECONDS = 3600.0

OUTPUT_LIMIT = 64 << 20
#: Bytes, from the end, of a failed program's standard error.
ERRORS_SHOWN = 2000

#: Maximum bytes in a pipe: /proc/sys/fs/pipe-max-size.
PIPE_SIZE = 1 << 20

#: Seconds between checks whether a program has ended whose pipes others hold open.
POLL = 0.2

HIDDEN = "***"
#: Values with fewer characters than this may appear in an error: they occur in every text.
SHORT = 4

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any


def is_executable(path: str) -> bool:
    """Return whether the template at *path* is a program: a file that may be executed."""
    return os.path.isfile(path) and os.access(path, os.X_OK)


def run(path: str, document: dict[str, Any], environment: Mapping[str, str]) -> str:
    """Return the output of the program at *path* for *document*.

    Raises ApplyError when it cannot be run, fails, or prints anything but UTF-8. The sentence has
    its standard error, without the values of *document*.
    """
    # Without a slash the program would be looked up in PATH.
    if not os.path.dirname(path):
        path = os.path.join(".", path)
    try:
        data = json.dumps(document).encode("ascii")
    except RecursionError:
        raise ApplyError(f"the metadata is nested too deeply for {path}") from None
    stdin = os.memfd_create("metadata")  # in memory: it holds credentials
    try:
        files.write_all(stdin, data)
        # The program reads from the shared offset, which writing has moved to the end.
        os.lseek(stdin, 0, os.SEEK_SET)
        child = _Child(path, environment, stdin)
    except OSError as error:
        raise ApplyError(
            f"config script cannot be run: {path}: {process.why_not(path, error)}"
        ) from None
    finally:
        os.close(stdin)
    with child:
        status = child.read(SECONDS)
    if status is None:
        raise ApplyError(
            f"config script took longer than {SECONDS:g} s or printed too much: {path}"
        )
    if status:
        shown = _without_values(child.errors(), document)
        raise ApplyError(f"config script failed: {path} (status {status})\n\n{shown}")
    try:
        return bytes(child.output).decode("utf-8")
    except UnicodeDecodeError:
        raise ApplyError(f"config script printed what is not UTF-8: {path}") from None


class _Child:
    """A running program, and its output so far."""

    def __init__(self, path: str, environment: Mapping[str, str], stdin: int) -> None:
        self.output = bytearray()
        self._errors = bytearray()
        readers: list[int] = []
        writers: list[int] = []
        try:
            for _ in range(2):
                reader, writer = os.pipe()
                readers.append(reader)
                writers.append(writer)
            self._pid = _start(path, environment, (stdin, writers[0], writers[1]))
        except BaseException:
            _close(readers)
            raise
        finally:
            # A reader gets its end of file only when no copy of the writing end is open here.
            _close(writers)
        self._sinks = {readers[0]: self.output, readers[1]: self._errors}

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        _close(self._sinks)
        self._sinks = {}

    def read(self, seconds: float) -> int | None:
        """Read to the end; return its status, None after *seconds* or too much output."""
        deadline = time.monotonic() + seconds
        poll = select.poll()
        for reader in self._sinks:
            poll.register(reader, select.POLLIN)
        while self._sinks and time.monotonic() < deadline and len(self.output) <= OUTPUT_LIMIT:
            status = process.wait(self._pid, 0)
            # Once it has ended, all of its own output can be read; that of others does not count.
            for reader, _ in poll.poll(POLL * 1000 if status is None else 0):
                self._take(reader, poll)
            if status is not None:
                return status
        # Both pipes have ended, or a limit was exceeded. A program that has closed its output may
        # still run; one that has printed too much is killed at once.
        status = None
        if len(self.output) <= OUTPUT_LIMIT:
            status = process.wait(self._pid, max(0.0, deadline - time.monotonic()))
        if status is None:
            os.kill(self._pid, signal.SIGKILL)
            process.wait(self._pid)
        return status

    def _take(self, reader: int, poll: select.poll) -> None:
        data = os.read(reader, PIPE_SIZE)
        sink = self._sinks[reader]
        sink += data
        # Only the end is shown, so no more of it is kept.
        if sink is self._errors:
            del sink[:-ERRORS_SHOWN]
        if not data:
            poll.unregister(reader)
            os.close(reader)
            del self._sinks[reader]

    def errors(self) -> str:
        return self._errors.decode("utf-8", "replace").strip()


def _start(path: str, environment: Mapping[str, str], streams: tuple[int, int, int]) -> int:
    if forks.fits(path, environment):
        return forks.start(path, environment, streams)
    stdin, stdout, stderr = streams
    return process.spawn([path], env=environment, stdin=stdin, stdout=stdout, stderr=stderr)


def _close(descriptors: Any) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _without_values(text: str, document: Any) -> str:
    """Return *text* with HIDDEN for each line, from SHORT characters on, of *document*'s texts."""
    words = {line.strip() for value in _texts(document) for line in value.splitlines()}
    # The longest first: a shorter one may be a part of it, and the rest would be shown.
    for word in sorted(words, key=len, reverse=True):
        if len(word) >= SHORT:
            text = text.replace(word, HIDDEN)
    return text


def _texts(value: Any) -> Iterator[str]:
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
