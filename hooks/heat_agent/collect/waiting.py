"""Send the signals of deployments that wait for another try, between two polls.

A signal that Heat did not accept is no reason to run all phases again. heat-config keeps a file in
its state directory while one waits, and decides itself when to try again.
"""

from __future__ import annotations

import os

from heat_config import process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

STATE = "/var/lib/heat-config/deployed"
WAITING = ".waiting"
RESEND = ("/usr/local/bin/heat-config", "resend", "--due")


def resend(command: Sequence[str] = RESEND) -> None:
    """Run *command* if a signal waits; polling continues even if it fails."""
    state = os.environ.get("HEAT_CONFIG_DEPLOYED") or STATE
    if not os.path.exists(os.path.join(state, WAITING)):
        return
    try:
        pid = process.spawn(list(command), env=dict(os.environ), stdin=0, stdout=1, stderr=2)
    except OSError:
        return
    process.wait(pid)
