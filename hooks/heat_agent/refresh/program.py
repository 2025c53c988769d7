"""The command os-refresh-config, with the options, messages and exit statuses of 14.1."""

from __future__ import annotations

import os
import sys
import time
from types import SimpleNamespace

from .lock import LOCK_FILE
from .refresh import BASE, PHASES, refresh

OLD_BASE = "/opt/stack/os-config-refresh"
LEVELS = {"DEBUG": 10, "INFO": 20, "WARN": 30, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def main(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ
) -> int:
    """Run the command with *arguments* (default: the command line's); return the exit status.

    Raises SystemExit for invalid arguments (2), and for --help.
    """
    options = _options(sys.argv[1:] if arguments is None else arguments)
    base = default_base(environment)
    if options.print_base:
        print(base, flush=True)
        return 0
    if options.print_phases:
        print("\t".join(PHASES), flush=True)
        return 0
    return refresh(
        base,
        log=Log(options.log_level),
        environment=environment,
        lockfile=options.lockfile,
        seconds=options.timeout,
    )


def default_base(environment: Mapping[str, str]) -> str:
    """Return the directory of phases: the environment's, else the first that exists."""
    named = environment.get("OS_REFRESH_CONFIG_BASE_DIR")
    if named is not None:
        return named
    if os.path.isdir(BASE) or not os.path.isdir(OLD_BASE):
        return BASE
    Log()(
        "WARNING",
        f"Base directory {OLD_BASE} is deprecated. The recommended base directory is {BASE}",
    )
    return OLD_BASE


class Log:
    """Writer of lines from *level* on to standard error."""

    def __init__(self, level: str = "INFO") -> None:
        self._lowest = LEVELS[level]

    def __call__(self, level: str, text: str) -> None:
        """Write *text* with the time, the program's name and *level* in front of it."""
        if LEVELS[level] < self._lowest:
            return
        now = time.time()
        # The format of Python's logging, with a comma in front of the milliseconds.
        moment = (
            f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(now))},{int(now % 1 * 1000):03d}"
        )
        sys.stderr.write(f"[{moment}] (os-refresh-config) [{level}] {text}\n")
        sys.stderr.flush()


def _options(arguments: Sequence[str]) -> SimpleNamespace:
    defaults = {
        "print_base": False,
        "print_phases": False,
        "log_level": "INFO",
        "lockfile": LOCK_FILE,
        "timeout": None,
    }
    if not arguments:
        return SimpleNamespace(**defaults)
    import argparse  # slow to import, and the agent passes no arguments

    parser = argparse.ArgumentParser(
        prog="os-refresh-config",
        description="Run the scripts of all phases, one run at a time. They are in the directory"
        f" that the environment variable OS_REFRESH_CONFIG_BASE_DIR names, by default {BASE}.",
    )
    add = parser.add_argument
    add("--print-base", action="store_true", help="print where the phases are, and exit")
    add("--print-phases", action="store_true", help="print the phases, between tabs, and exit")
    add("--log-level", choices=["ERROR", "WARN", "CRITICAL", "INFO", "DEBUG"])
    add("--lockfile", help="what keeps runs apart (default: %(default)s)")
    add("--timeout", type=int, help="seconds after which the run is ended, and has failed")
    parser.set_defaults(**defaults)
    return parser.parse_args(arguments, SimpleNamespace())
