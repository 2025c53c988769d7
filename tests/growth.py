"""The growth of this process's memory while a guest is hostile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

#: Limit in bytes.
GROWTH = 64 << 20


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(field)


@contextlib.contextmanager
def bounded(what: str) -> Iterator[None]:
    """Check that this process grows by at most :data:`GROWTH` inside."""
    # VmHWM is the peak from here on.
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    yield
    grown = _resident("VmHWM") - before
    print(f"{what}: grown by {grown / 1e6:.1f} MB")
    assert grown <= GROWTH
