"""The progress of several cases at once: a line each.

On a terminal the lines of the running cases are redrawn below the output of those that have ended;
elsewhere each change is a line, with the name of its case before it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from hotplate.report.terminal import is_live
from hotplate.text import clean_line

#: Seconds between two redraws of a terminal.
INTERVAL = 0.5


@dataclass
class _Line:
    began: float
    doing: str = ""


class Board:
    """Shows the activity of each case.

    :param quiet: show only the output of cases that have ended.
    """

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._live = not quiet and is_live(stream)
        self._rows: dict[str, _Line] = {}
        self._drawn = 0

    @property
    def interval(self) -> float | None:
        """The seconds from one :meth:`draw` to the next; None where it is not needed."""
        return INTERVAL if self._live else None

    def begin(self, name: str) -> None:
        """Give a case a line."""
        self._rows[name] = _Line(time.monotonic())
        self.doing(name, "starting")

    def doing(self, name: str, text: str) -> None:
        """Show the current activity of a case."""
        self._rows[name].doing = clean_line(text)
        if self._live:
            self.draw()
        elif not self._quiet:
            self._write(f"{clean_line(name)}: {clean_line(text)}\n")

    def end(self, name: str, lines: Sequence[str]) -> None:
        """Remove the line of a case, and write its result."""
        self._rows.pop(name, None)
        self.say(lines)

    def say(self, lines: Sequence[str]) -> None:
        """Write lines that stay."""
        self._wipe()
        self._write("".join(f"{line}\n" for line in lines))
        self.draw()

    def draw(self) -> None:
        """Draw the lines of the running cases, on a terminal."""
        if not self._live:
            return
        self._wipe()
        size = shutil.get_terminal_size()
        lines = [self._line(name, row, size.columns) for name, row in self._rows.items()]
        # Lines that have scrolled away cannot be redrawn, so the terminal must not scroll.
        most = max(1, size.lines - 2)
        if len(lines) > most:
            lines = [*lines[: most - 1], f"... and {len(lines) - most + 1} more"]
        self._write("".join(f"{line}\n" for line in lines))
        self._drawn = len(lines)

    def _line(self, name: str, row: _Line, columns: int) -> str:
        text = f"{time.monotonic() - row.began:6.0f} s  {clean_line(name)}: {row.doing}"
        # A line that wraps takes two rows, of which _wipe() would count one.
        return text[: max(20, columns - 1)]

    def _wipe(self) -> None:
        if self._drawn:
            # CSI n A moves the cursor up n lines, CSI J clears from there to the end of the screen.
            self._write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
