"""How late the timers of an emulated machine may be."""

from __future__ import annotations

import contextlib
import os
import re
import threading

SLACK = 20_000_000
"""Nanoseconds.  A Debian's kernel asks for 250 ticks a second, each of which costs the emulator
up to 0.8 ms; with this there are some 45."""

EXACT = 1
"""Nanoseconds: what QEMU sets for itself."""

TIMERS_CHECKED = 2.0
"""Seconds of the kernel's own clock after which it has checked its timers.  It does so in the first
half of a second, counts five ticks in some 60 ms, and panics where they do not come."""

_KERNEL_LINE = re.compile(r"\[ *(\d+\.\d{6})\] ")
"""What the kernel begins its lines with (printk.time)."""


class TimerSlack:
    """Lets the timers of one QEMU be late once its guest's kernel has checked them.

    What ticks cost goes by the clock and not by what a guest does: a fifth of a processor while it
    works, also when others have the processors most of that time.

    Linux gives this right to who has CAP_SYS_NICE in QEMU's user namespace (``timerslack_ns`` in
    proc(5)).  Where it refuses, and in a guest whose kernel writes nothing on the console, timers
    stay exact.

    :param pid: of QEMU, whose first thread runs the timers.
    """

    def __init__(self, pid: int) -> None:
        self._lock = threading.Lock()
        self._nanoseconds = EXACT
        # Opened once: it never becomes another process's.
        self._file = -1
        with contextlib.suppress(OSError):
            self._file = os.open(f"/proc/{pid}/timerslack_ns", os.O_WRONLY | os.O_CLOEXEC)

    def read(self, line: str) -> None:
        """Take a line of the console; a kernel that has only begun gets exact timers."""
        if match := _KERNEL_LINE.match(line):
            self.set(SLACK if float(match[1]) >= TIMERS_CHECKED else EXACT)

    def set(self, nanoseconds: int) -> None:
        """Let timers be as late as this from now on."""
        with self._lock, contextlib.suppress(OSError):
            if nanoseconds != self._nanoseconds and self._file >= 0:
                self._nanoseconds = nanoseconds
                os.write(self._file, str(nanoseconds).encode())

    def close(self) -> None:
        """Forget QEMU; its timers stay as they are."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1
