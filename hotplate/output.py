"""Guard a command's output streams against errors of their readers, and draw a live line.

The result of a verb does not depend on its readers: one that is gone (``| head -1``) is no error,
and a full disk behind ``>`` is reported once, at the end.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self, TextIO, cast

STANDARD = (0, 1, 2)

#: CSI K clears the line (ECMA-48); a terminal without it is "dumb" (terminfo(5)).
WIPE = "\r\x1b[K"

#: Seconds between two drawings of a live line.
INTERVAL = 0.5

_BAR = 20


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


def is_live(stream: TextIO) -> bool:
    """Return True when a line can be redrawn on the stream."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def show_doing(text: str) -> None:
    """Show the present action on standard error, until the next text; on a terminal only."""
    if is_live(sys.stderr):
        # The cursor stays at the start of the line, where the next text begins.
        print(f"{WIPE}{fitted(text)}\r", end="", file=sys.stderr, flush=True)


def fitted(text: str) -> str:
    """Return a line cut to the width of the terminal: one that wraps cannot be redrawn."""
    return text[: max(1, shutil.get_terminal_size().columns - 1)]


def usually(elapsed: float, usual: float | None) -> str:
    """Return the usual duration, in seconds, and a bar; "" when that is not known.

    >>> usually(20, 40)
    '  usually at 40 s [##########..........]'
    """
    if not usual:
        return ""
    full = min(_BAR, int(_BAR * elapsed / usual))
    # A narrow terminal cuts the bar first.
    return f"  usually at {usual:.0f} s [{'#' * full}{'.' * (_BAR - full)}]"


class LiveLine:
    """Lines of progress, and on a terminal a last one that is redrawn; a context manager.

    :param text: returns the last line, "" for none; it is called in a thread.
    :param quiet: write nothing at all.
    """

    def __init__(self, stream: TextIO, text: Callable[[], str], *, quiet: bool = False) -> None:
        self._stream = stream
        self._text = text
        self._quiet = quiet
        self._live = not quiet and is_live(stream)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._live:
            # A daemon thread does not keep the process from ending.
            self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._ticker.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join()
        # The thread has ended, so that nothing draws the line again.
        if self._live:
            self._write(WIPE)

    def say(self, text: str) -> None:
        """Write a line that stays."""
        if not self._quiet:
            with self._lock:
                self._write(f"{WIPE if self._live else ''}{text}\n")

    def _tick(self) -> None:
        shown = ""
        while not self._ended.wait(INTERVAL):
            with self._lock:
                before, shown = shown, self._text()
                if shown or before:
                    # In one piece, so that a terminal shows no empty line in between.
                    self._write(WIPE + fitted(shown))

    def _write(self, text: str) -> None:
        # A terminal that went away must not take the run with it.
        try:
            self._stream.write(text)
            self._stream.flush()
        # ValueError: the stream is closed.
        except (OSError, ValueError):
            self._quiet, self._live = True, False
