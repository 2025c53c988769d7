"""A build with its progress on the terminal."""

from __future__ import annotations

import contextlib
import shutil
import sys
from typing import TextIO

from hotplate.image.build import Build, BuildError, BuildResult
from hotplate.image.progress import BuildProgress


def build_shown(build: Build, *, quiet: bool = False) -> BuildResult:
    """Build an image, showing its progress, and the last lines when it fails.

    :param quiet: do not show the progress.
    :raises HotplateError: as :meth:`~hotplate.image.build.Build.run` does.
    """
    shown = contextlib.nullcontext() if quiet else Display(build.progress, sys.stdout)
    try:
        with shown:
            return build.run()
    except BuildError as error:
        for line in error.lines:
            print(f"  | {line}", file=sys.stderr)
        raise


class Display:
    """Shows the progress of a build: a line for each step, and on a terminal the present action.

    :param stream: the output; only a terminal gets the changing line.
    """

    EVERY = 0.1

    def __init__(self, progress: BuildProgress, stream: TextIO) -> None:
        self._progress = progress
        self._stream = stream
        self._live = stream.isatty()
        self._shown = 0.0

    def __enter__(self) -> Display:
        self._progress.on_step = self._step
        if self._live:
            self._progress.on_line = self._now
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._live:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _step(self, name: str, seconds: float) -> None:
        self._clear()
        print(f"{seconds:7.1f} s  {name}", file=self._stream, flush=True)

    def _now(self) -> None:
        seconds = self._progress.elapsed
        if seconds - self._shown < self.EVERY:
            return
        self._shown = seconds
        columns = shutil.get_terminal_size().columns
        text = f"{seconds:7.1f} s  ... {self._progress.script or self._progress.step}"
        self._stream.write(f"\r\x1b[K{text[: columns - 1]}")
        self._stream.flush()
