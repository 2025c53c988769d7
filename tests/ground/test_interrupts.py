"""Signals that mean "end", at moments when an exception would do harm."""

from __future__ import annotations

import subprocess
import sys

IN_AN_IMPORT = """
import _imp, signal, sys, threading, time
from hotplate.interrupts import Interrupts
from hotplate.errors import Interrupted

main, holds = threading.get_ident(), threading.Event()

def hold():
    _imp.acquire_lock()
    holds.set()
    while sys._current_frames()[main].f_code.co_name != "_get_module_lock":
        time.sleep(0.01)
    signal.pthread_kill(main, signal.SIGTERM)
    time.sleep(0.1)
    _imp.release_lock()

with Interrupts() as interrupts:
    try:
        with interrupts.allowed():
            threading.Thread(target=hold).start()
            holds.wait()
            import colorsys
            time.sleep(60)
    except Interrupted as error:
        print(f"{error}; the lock of imports is held: {_imp.lock_held()}")
"""


def test_signal_leaves_imports_to_other_threads() -> None:
    """``hotplate test`` used to hang: Heat's thread waited for the lock, and the end for that
    thread.
    """
    done = subprocess.run(
        [sys.executable, "-c", IN_AN_IMPORT], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "ended by SIGTERM; the lock of imports is held: False\n", done.stderr
