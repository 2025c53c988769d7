"""Read files written by others: only regular ones, up to a size limit."""

from __future__ import annotations

import os
import stat

LIMIT = 16 << 20


def whole(path: str) -> bytes | None:
    """Return the bytes of the regular file *path*; None if there is none or it is too long."""
    try:
        # Without O_NONBLOCK, opening a pipe without a writer would block for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        try:
            data = stream.read(LIMIT + 1)
        except OSError:
            return None
    return data if len(data) <= LIMIT else None
