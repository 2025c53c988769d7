"""All phases of a change, one run at a time."""

from __future__ import annotations

import errno
import os
import time

from . import phase
from .lock import LOCK_FILE, Lock

BASE = "/usr/libexec/os-refresh-config"
PHASES = ("pre-configure", "configure", "post-configure", "migration")
ERROR = "error"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Log = Callable[[str, str], None]


def refresh(
    base: str = BASE,
    *,
    log: Log,
    environment: Mapping[str, str] | None = None,
    lockfile: str = LOCK_FILE,
    seconds: int | None = None,
) -> int:
    """Run the phases below the directory *base*; return 0, or a status for the kind of failure.

    That is 1 when a phase failed (those after it do not run, the scripts in ``error.d`` do) or the
    lock is unavailable, and 11 when another run holds it. *environment* is that of the scripts, by
    default this process's; after *seconds* the run is ended, and the scripts in ``error.d`` have
    as long again. *log* is called with a level ("INFO") and a line.

    It may be called in a process that continues afterwards: scripts leave no trace in it.
    """
    environment = dict(os.environ if environment is None else environment)
    lock = Lock(lockfile)
    try:
        lock.take()
    except OSError as error:
        log("ERROR", f"Could not lock {lockfile}. {error}")
        return errno.EAGAIN if error.errno == errno.EAGAIN else 1
    try:
        return _run_phases(base, environment, seconds, log)
    finally:
        lock.release()


def _run_phases(base: str, environment: Mapping[str, str], seconds: int | None, log: Log) -> int:
    deadline = time.monotonic() + seconds if seconds else None
    for name in PHASES:
        directory = os.path.join(base, f"{name}.d")
        log("DEBUG", f"Checking {directory}")
        if not os.path.exists(directory):
            log("DEBUG", f"No dir for phase {name}")
            continue
        log("INFO", f"Starting phase {name}")
        log("DEBUG", f"Running {['dib-run-parts', directory]}")
        status = phase.run(directory, environment, deadline)
        if deadline is not None and time.monotonic() >= deadline:
            log("ERROR", f"Timeout reached: {seconds}s. Sent SIGKILL to all children")
            # A script may have ended well just before the deadline, with others left.
            status = status or 1
        if status:
            # Upstream's text, that of subprocess.CalledProcessError.
            command = f"Command '{['dib-run-parts', directory]}'"
            log(
                "ERROR",
                f"during {name} phase. [{command} returned non-zero exit status {status}.]\n",
            )
            _handle_error(base, environment, seconds, log)
            log("ERROR", "Aborting...")
            return 1
        log("INFO", f"Completed phase {name}")
    return 0


def _handle_error(base: str, environment: Mapping[str, str], seconds: int | None, log: Log) -> None:
    directory = os.path.join(base, f"{ERROR}.d")
    if os.path.exists(directory):
        log("INFO", "Calling error handlers.")
        deadline = time.monotonic() + seconds if seconds else None
        phase.run(directory, environment, deadline)
