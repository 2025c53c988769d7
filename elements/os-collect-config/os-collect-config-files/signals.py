"""Have heat-config retry signals of deployments between two polls of the agent.

A signal that Heat did not accept is no reason to run all phases again: heat-config keeps a file in
its state directory while one waits, and decides itself when the next try is due.
"""

import os
import subprocess
import sys
from pathlib import Path

STATE = "/var/lib/heat-config/deployed"
WAITING = ".waiting"
RESEND = ("/usr/local/bin/heat-config", "resend", "--due")


def after(collect_all):
    """Return the agent's `collect_all`, followed by the signals if it has found nothing new.

    If it has, the phases run, and 55-heat-config sends them.
    """

    def run(*arguments, **options):
        changed, content = collect_all(*arguments, **options)
        if not changed:
            resend()
        return changed, content

    return run


def resend(command=RESEND):
    """Send the signals that are due; whatever happens, polling goes on."""
    state = Path(os.environ.get("HEAT_CONFIG_DEPLOYED") or STATE)
    if not (state / WAITING).exists():
        return
    try:
        subprocess.call(command)
    except OSError as error:
        print(f"os-collect-config: {command[0]} cannot be run: {error}", file=sys.stderr)
