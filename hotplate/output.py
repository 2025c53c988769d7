"""Guard a command's output streams against errors of their readers.

The result of a verb does not depend on its readers: one that is gone (``| head -1``) is no error,
and a full disk behind ``>`` is reported once, at the end.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

STANDARD = (0, 1, 2)


class Output:
    """Wraps a stream: after the first line that cannot be written, the rest is dropped.

    :ivar problem: the write error, None while there is none, or when the reader is gone.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.problem: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, without raising errors of the stream."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError) as error:
            self._lost(error)
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        """Write bytes unchanged, after the text written before."""
        self.flush()
        try:
            self._stream.buffer.write(data)
        except (OSError, ValueError) as error:
            self._lost(error)
        self.flush()

    def flush(self) -> None:
        """Flush; see :meth:`write`."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._lost(error)

    def _lost(self, error: OSError | ValueError) -> None:
        if isinstance(error, OSError) and error.errno != errno.EPIPE and self.problem is None:
            self.problem = error
        # Buffered data is dropped, so that Python's own flush at the end finds no error.
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


@contextlib.contextmanager
def guarded() -> Iterator[Output]:
    """Wrap each output stream in an :class:`Output` while a verb runs.

    :return: the standard output; errors of the standard error cannot be reported anywhere.

    Characters missing in the terminal's encoding, and undecodable file names, are written as
    escapes.
    """
    _open_standard_files()
    before = sys.stdout, sys.stderr
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    output, errors = Output(sys.stdout), Output(sys.stderr)
    sys.stdout, sys.stderr = cast(TextIO, output), cast(TextIO, errors)
    try:
        yield output
    finally:
        output.flush()
        errors.flush()
        sys.stdout, sys.stderr = before


def _open_standard_files() -> None:
    """Reserve the numbers of standard files that were closed at the start."""
    for number in STANDARD:
        try:
            # A file opened later would get a free one of these numbers, and be written to by
            # print().
            os.fstat(number)
        except OSError:
            # The lowest free number is this one.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
