"""Wait for the boot metadata, by running the program that prepares it.

The element's ``prepare`` waits for cloud-init, removes another instance's files from the disk, and
writes the first configuration.
"""

from __future__ import annotations

import os
import sys

from heat_config import process

PREPARE = "/usr/libexec/os-collect-config/prepare"
#: Its exit status if the disk still has another instance's state: the agent must not start.
FOREIGN = 78


def prepare(program: str = PREPARE) -> int:
    """Run *program*; return FOREIGN if the agent must not start, else 0.

    Any other failure is only reported on stderr, as where upstream's agent is started.
    """
    try:
        pid = process.spawn([program], env=dict(os.environ), stdin=0, stdout=1, stderr=2)
    except OSError as error:
        _say(f"cannot run {program}: {error.strerror}")
        return 0
    status = process.wait(pid)
    if status not in (0, FOREIGN):
        _say(f"prepare ended with status {status}")
    return FOREIGN if status == FOREIGN else 0


def _say(sentence: str) -> None:
    print(f"os-collect-config: {sentence}", file=sys.stderr, flush=True)
