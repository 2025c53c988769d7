"""The progress of several cases at once: a line each.

On a terminal the lines of the running cases are redrawn below the output of those that have ended;
elsewhere each change is a line, with the name of its case before it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TextIO

from hotplate.output import fitted, is_live
from hotplate.text import clean_line

#: Seconds between two redraws of a terminal.
INTERVAL = 0.5


@dataclass
class _Line:
    began: float
    usual: float | None = None
    doing: str = ""


class Board:
    """Shows the activity of each case.

    :param usual: returns the seconds that a case took in earlier runs, by its name.
    :param quiet: show only the output of cases that have ended.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        usual: Callable[[str], float | None] = lambda _: None,
        quiet: bool = False,
    ) -> None:
        self._stream = stream
        self._usual = usual
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
        self._rows[name] = _Line(time.monotonic(), self._usual(name))
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
        text = "".join(f"{line}\n" for line in lines)
        self._write(self._wiped() + text + self._drawing())

    def draw(self) -> None:
        """Draw the lines of the running cases, on a terminal."""
        if self._live:
            # In one piece, so that a terminal shows no empty lines in between.
            self._write(self._wiped() + self._drawing())

    def _drawing(self) -> str:
        if not self._live:
            return ""
        lines = [self._line(name, row) for name, row in self._rows.items()]
        # Lines that have scrolled away cannot be redrawn, so the terminal must not scroll.
        most = max(1, shutil.get_terminal_size().lines - 2)
        if len(lines) > most:
            lines = [*lines[: most - 1], f"... and {len(lines) - most + 1} more"]
        self._drawn = len(lines)
        return "".join(f"{fitted(line)}\n" for line in lines)

    def _line(self, name: str, row: _Line) -> str:
        usual = f" of {row.usual:.0f}" if row.usual else ""
        elapsed = f"{time.monotonic() - row.began:6.0f}{usual} s"
        return f"{elapsed}  {clean_line(name)}: {row.doing}"

    def _wiped(self) -> str:
        """Return the sequence that removes the drawn lines."""
        drawn, self._drawn = self._drawn, 0
        # CSI n A moves the cursor up n lines, CSI J clears from there to the end of the screen.
        return f"\x1b[{drawn}A\x1b[J" if drawn else ""

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()
