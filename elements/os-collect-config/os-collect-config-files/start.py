#!/usr/bin/python3
"""Start os-collect-config: load it first, then prepare, then run it.

Loading takes seconds on a slow machine.  Done first, it happens while
cloud-init is still at work; `prepare` waits for that.  At build time the
first line is made to name the Python that has the agent.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from os_collect_config import collect

PREPARE = Path(__file__).resolve().with_name("prepare")


def main():
    """Run `prepare`, then the agent's own main program."""
    status = subprocess.call([PREPARE])
    if status:
        print(f"os-collect-config: prepare ended with status {status}", file=sys.stderr)
    # The agent executes argv[0] again whenever its configuration changes.
    sys.argv[0] = shutil.which("os-collect-config") or sys.argv[0]
    # Debian's 13.1 has the name that it had before 14.
    run = getattr(collect, "main", None) or collect.__main__
    return run(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
