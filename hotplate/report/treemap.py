"""What takes the space, as a picture: each owner of files a rectangle as large as they are.

Source of the layout: M. Bruls, K. Huizing, J. van Wijk, "Squarified Treemaps", 2000.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

WIDTH, HEIGHT = 1180.0, 420.0
MOST = 60
"""Rectangles of one picture; the rest is one together."""

REST = "all others"
LETTER = 6.4
"""As wide as a letter of the picture's text, about."""


@dataclass(frozen=True)
class Tile:
    """A rectangle, in the picture's units.

    :param name: whose files it stands for.
    :param size: bytes.
    """

    name: str
    size: int
    x: float
    y: float
    width: float
    height: float

    @property
    def label(self) -> str:
        """As much of the name as fits into it, "" where that is next to nothing."""
        letters = int((self.width - 8) / LETTER)
        if self.height < 16 or letters < 4:
            return ""
        return self.name if len(self.name) <= letters else self.name[: letters - 1] + "…"


def tiles(sizes: Mapping[str, int]) -> list[Tile]:
    """Return the rectangles of sizes in bytes, the largest first."""
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    shown = ordered[:MOST]
    if rest := sum(size for _, size in ordered[MOST:]):
        shown.append((REST, rest))
    whole = [(name, size) for name, size in shown if size > 0]
    return list(_laid_out(whole, 0.0, 0.0, WIDTH, HEIGHT))


def _laid_out(
    left: list[tuple[str, int]], x: float, y: float, width: float, height: float
) -> Iterator[Tile]:
    """Fill a rectangle row by row, each along its shorter side."""
    while left:
        total = sum(size for _, size in left)
        scale = width * height / total
        side = min(width, height)
        count = _row_length([size * scale for _, size in left], side)
        row, left = left[:count], left[count:]
        area = sum(size for _, size in row)
        # The last row takes what is there, whatever was lost in rounding.
        depth = max(width, height) if not left else area * scale / side
        at = 0.0
        for name, size in row:
            length = side * size / area
            if width >= height:
                yield Tile(name, size, x, y + at, depth, length)
            else:
                yield Tile(name, size, x + at, y, length, depth)
            at += length
        if width >= height:
            x, width = x + depth, width - depth
        else:
            y, height = y + depth, height - depth


def _row_length(areas: list[float], side: float) -> int:
    """Return with how many of the first areas a row has its rectangles nearest to squares."""
    best = _worst(areas[:1], side)
    for count in range(2, len(areas) + 1):
        worst = _worst(areas[:count], side)
        if worst > best:
            return count - 1
        best = worst
    return len(areas)


def _worst(areas: list[float], side: float) -> float:
    """Return the largest ratio of the sides of rectangles in one row."""
    total = sum(areas)
    return max(side**2 * max(areas) / total**2, total**2 / (side**2 * min(areas)))
