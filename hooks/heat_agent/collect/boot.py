"""Wait for the boot metadata, by running the program that knows where it comes from.

The element's ``prepare`` waits for cloud-init, removes what another instance left on the disk, and
writes the first configuration.
"""

from __future__ import annotations

import os

from heat_config import process

PREPARE = "/usr/libexec/os-collect-config/prepare"
FOREIGN = 78
"""Its exit status if the disk still has another instance's state: the agent must not start."""


def prepare(program: str = PREPARE) -> int:
    """Run *program*; return FOREIGN if the agent must not start, else 0."""
    try:
        pid = process.spawn([program], env=dict(os.environ), stdin=0, stdout=1, stderr=2)
    except OSError:
        return 0
    return FOREIGN if process.wait(pid) == FOREIGN else 0
