"""What a command writes to, which may go away without taking the command with it.

What a verb found out does not depend on who still reads it: a reader that has gone (``| head -1``)
is nobody's fault, and a full disk behind ``>`` is said once, at the end.
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
    """Stands before a stream: after the first line that cannot be written, the rest is dropped.

    :ivar problem: why it could not be written, None while it could, or when its reader has gone.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.problem: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, and never raise for what is behind the stream."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError) as error:
            self._lost(error)
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        """Write bytes as they are, behind what was written."""
        self.flush()
        try:
            self._stream.buffer.write(data)
        except (OSError, ValueError) as error:
            self._lost(error)
        self.flush()

    def flush(self) -> None:
        """See :meth:`write`."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._lost(error)

    def _lost(self, error: OSError | ValueError) -> None:
        if isinstance(error, OSError) and error.errno != errno.EPIPE and self.problem is None:
            self.problem = error
        # What is still buffered goes nowhere, and Python's own flush at the end finds no fault.
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)


@contextlib.contextmanager
def guarded() -> Iterator[Output]:
    """Let what is written to be an :class:`Output` each for as long as a verb runs.

    :return: the standard output; there is nobody to tell what became of the standard error.

    Characters that the terminal's encoding does not have, and file names that are no text, are
    written as escapes.
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
    """Where we were started with one of them closed, give its number to no other file."""
    for number in STANDARD:
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
