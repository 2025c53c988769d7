"""How slow this host is now, compared with the one on which the defaults were chosen."""

from __future__ import annotations

import threading
import time

#: Duration of :func:`_work` on a host where an image boots in about 50 s under TCG.
REFERENCE_SECONDS = 0.04

#: Upper bound of the factor, so that a deadline passes even on a very slow host.
MAX_FACTOR = 4.0

#: Seconds for which a measurement counts.
KEPT_SECONDS = 5.0

_lock = threading.Lock()
_measured: tuple[float, float] = (float("-inf"), 1.0)


def factor() -> float:
    """Return how much slower a computation is than on the reference host, at least 1.0.

    It takes part of a second, longer on a slow host; the answer is kept for some seconds. A slow
    processor and a shared one both raise it.
    """
    global _measured
    # Two measurements at once would slow each other down.
    with _lock:
        at, value = _measured
        if time.monotonic() - at > KEPT_SECONDS:
            began = time.monotonic()
            _work()
            value = (time.monotonic() - began) / REFERENCE_SECONDS
            _measured = time.monotonic(), value
        return min(max(value, 1.0), MAX_FACTOR)


def _work() -> None:
    """Compute with integers, as an emulator does; always the same amount."""
    value = 1
    for number in range(400_000):
        value = (value * 1103515245 + number) & 0x7FFFFFFF
