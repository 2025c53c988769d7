"""A fault as a user makes it in a running guest, and its expected diagnosis."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from hotplate.plugin.pool import ServerPool
from hotplate.timing.deadline import DeadlineExceeded

#: Seconds after which a deployment that cannot finish is diagnosed.
GIVE_UP = 8.0

AGENT = "os-collect-config"
STOP = f"systemctl stop {AGENT}"
START = f"systemctl start --no-block {AGENT}"
#: Restarts the agent; the old one ends first, so that it takes no later deployment. A file that
#: the agent's first run writes is changed between STOP and START instead.
RESTART = f"{STOP} && {START}"


@dataclass(frozen=True)
class UserFault:
    """One fault.

    :param plant: shell commands, run as root in a running guest.
    :param says: regular expressions that match the diagnosis, ignoring case.
    :param harmless: deployments still succeed, so the fault must not be named.
    :param transport: Heat's ``signal_transport`` of the deployment.
    """

    name: str
    plant: str
    says: tuple[str, ...]
    harmless: bool = False
    transport: str = "CFN_SIGNAL"

    def __str__(self) -> str:
        return self.name


def is_named(pool: ServerPool, fault: UserFault) -> None:
    """Plant the fault in a server, deploy, and compare the diagnosis with ``says``."""
    server = pool.server()
    try:
        server.run(fault.plant, timeout=180)
        deployment = server.deploy(
            group="script", config="#!/bin/sh\ntrue\n", transport=fault.transport
        )
        with contextlib.suppress(DeadlineExceeded):
            deployment.wait(seconds=GIVE_UP)
        diagnosis = server.diagnosis()
        if fault.harmless:
            assert deployment.status == "COMPLETE"
            return
        assert diagnosis is not None, deployment
        print(f"{diagnosis.fault}: {diagnosis}")
        for pattern in fault.says:
            assert re.search(pattern, str(diagnosis), re.IGNORECASE), pattern
    finally:
        pool.give_back(server)
