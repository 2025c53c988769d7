"""Find the new lines of a console that is repeatedly fetched as a whole."""

from __future__ import annotations

from hotplate.events.log import clipped

LINES = 30_000
"""The most lines read of one server; later lines are ignored."""


class ConsoleText:
    r"""The console of one server.

    Nova returns its end, of bounded length, so that the beginning moves on; the console of a
    restarted server may begin empty.

    >>> console = ConsoleText()
    >>> console.new("a\nb\nc\n")
    ['a', 'b', 'c']
    >>> console.new("b\nc\nd\nlog")
    ['d']
    >>> console.new("b\nc\nd\nlogin: ")
    []
    >>> console.new("b\nc\nd\nlogin: ")
    ['login: ']
    >>> console.new("b\nc\nd\nlogin: \ne\n")
    ['e']
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._open = self._prompt = ""
        self._taken = 0

    def new(self, text: str) -> list[str]:
        """Return the lines that were not there before.

        An unfinished line is returned once it is unchanged: it may be a prompt.

        :param text: the present console.
        """
        lines = text.replace("\r\n", "\n").split("\n")
        last = lines.pop()
        fresh = lines[_shared(self._lines, lines) :]
        self._lines = lines
        if fresh and self._prompt:
            # It was returned before it was finished.
            fresh = fresh[1:] if fresh[0] == self._prompt else fresh
            self._prompt = ""
        if last and last == self._open and last != self._prompt:
            fresh.append(last)
            self._prompt = last
        self._open = last
        fresh = fresh[: max(0, LINES - self._taken)]
        self._taken += len(fresh)
        return [clipped(each) for each in fresh]


def _shared(before: list[str], now: list[str]) -> int:
    """Return how many of the first lines repeat the earlier ones, or the end of those."""
    for start in range(len(before)):
        length = len(before) - start
        # The first line may be cut at its beginning.
        same = now[:1] == before[start : start + 1] or (start > 0 and length > 1)
        if same and now[1:length] == before[start + 1 :]:
            return length
    return 0
