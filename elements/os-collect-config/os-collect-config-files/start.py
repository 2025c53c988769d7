#!/usr/bin/python3
"""Start os-collect-config: load it first, then prepare, then run it.

Loading takes seconds on a slow machine.  Done first, it happens while
cloud-init is still at work; `prepare` waits for that.  At build time the
first line is made to name the Python that has the agent.
"""

import subprocess
import sys
from pathlib import Path

import run_phases
from os_collect_config import collect

PREPARE = Path(__file__).resolve().with_name("prepare")
AGAIN = "--again"
FOREIGN = 78  # as `prepare` has it


def main():
    """Run `prepare`, then the agent's own main program."""
    if run_phases.load():
        collect.call_command = run_phases.instead_of(collect.call_command)
    words = [word for word in sys.argv[1:] if word != AGAIN]
    if AGAIN not in sys.argv:
        status = subprocess.call([PREPARE])
        if status == FOREIGN:
            return status
        if status:
            print(f"os-collect-config: prepare ended with status {status}", file=sys.stderr)
    # The agent executes this again whenever its configuration changes.
    sys.argv = [sys.argv[0], AGAIN, *words]
    # Debian's 13.1 has the name that it had before 14.
    run = getattr(collect, "main", None) or collect.__main__
    return run(["os-collect-config", *words])


if __name__ == "__main__":
    sys.exit(main())
