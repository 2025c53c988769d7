"""Timer slack of an emulated machine."""

from __future__ import annotations

import contextlib
import os
import re
import threading

#: Nanoseconds. Debian's kernel asks for 250 ticks a second, each of which costs the emulator up to
#: 0.8 ms; this value leaves some 25. A boot takes no longer, as it waits for few timers.
SLACK = 60_000_000

#: Nanoseconds: QEMU's own setting.
EXACT = 1

#: Seconds of the kernel's own clock after which it has checked its timers. It does so in the first
#: half of a second, counts five ticks in some 60 ms, and panics when they do not come.
TIMERS_CHECKED = 2.0

#: The prefix of the kernel's lines (printk.time).
_KERNEL_LINE = re.compile(r"\[ *(\d+\.\d{6})\] ")


class TimerSlack:
    """Lets the timers of one QEMU be late once its guest's kernel has checked them.

    The cost of ticks depends on time and not on the guest's work: a fifth of a processor while the
    guest works, also when other processes use the processors most of that time.

    Linux requires CAP_SYS_NICE in QEMU's user namespace (``timerslack_ns`` in proc(5)). Where it
    refuses, and in a guest whose kernel does not write on the console from its beginning, timers
    stay exact.

    :param pid: process id of QEMU, whose first thread runs the timers.
    """

    def __init__(self, pid: int) -> None:
        self._lock = threading.Lock()
        self._nanoseconds = EXACT
        self._kernel_began = False
        # Opened once, so that it never becomes another process's.
        self._file = -1
        with contextlib.suppress(OSError):
            self._file = os.open(f"/proc/{pid}/timerslack_ns", os.O_WRONLY | os.O_CLOEXEC)

    def read(self, line: str) -> None:
        """Read a line of the console, whose prefix tells how long the guest's kernel has run."""
        if match := _KERNEL_LINE.match(line):
            with self._lock:
                if float(match[1]) < TIMERS_CHECKED:
                    self._kernel_began = True
                    self._set(EXACT)
                elif self._kernel_began:
                    self._set(SLACK)

    def reset(self) -> None:
        """Be exact until the next kernel begins; last lines of the one before may come late."""
        with self._lock:
            self._kernel_began = False
            self._set(EXACT)

    def restored(self) -> None:
        """Be late at once, as the guest's kernel already runs."""
        with self._lock:
            self._set(SLACK)

    def close(self) -> None:
        """Close the file of QEMU's slack; its timers stay as they are."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._file = -1

    def _set(self, nanoseconds: int) -> None:
        with contextlib.suppress(OSError):
            # Recorded before the write, so that a refused value is not tried again for each line.
            if nanoseconds != self._nanoseconds and self._file >= 0:
                self._nanoseconds = nanoseconds
                os.write(self._file, str(nanoseconds).encode())
