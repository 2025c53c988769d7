"""Have signals of deployments sent that wait for another try, between two polls of the agent.

A signal that Heat did not take is no reason to run all phases again: heat-config leaves a file in
its state directory while one waits, and knows itself when it is time for the next try.
"""

import os
import subprocess
import sys
from pathlib import Path

STATE = "/var/lib/heat-config/deployed"
WAITING = ".waiting"
RESEND = ("/usr/local/bin/heat-config", "resend", "--due")


def after(collect_all):
    """The agent's own `collect_all`, and the signals after it where it found nothing new.

    Where it did, the phases run, and 55-heat-config sends them.
    """

    def run(*arguments, **options):
        changed, content = collect_all(*arguments, **options)
        if not changed:
            resend()
        return changed, content

    return run


def resend(command=RESEND):
    """Send those that it is time for; whatever becomes of that, polling goes on."""
    state = Path(os.environ.get("HEAT_CONFIG_DEPLOYED") or STATE)
    if not (state / WAITING).exists():
        return
    try:
        subprocess.call(command)
    except OSError as error:
        print(f"os-collect-config: {command[0]} cannot be run: {error}", file=sys.stderr)
