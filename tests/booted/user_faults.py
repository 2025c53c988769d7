"""A fault as a user makes it in a guest that runs, and what is to be said of it."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from hotplate.plugin.pool import ServerPool
from hotplate.timing.deadline import DeadlineExceeded

GIVE_UP = 8.0
"""Seconds after which a deployment is asked about that cannot come to an end."""

AGENT = "os-collect-config"
RESTART = f"systemctl stop {AGENT} && systemctl start --no-block {AGENT}"
"""Starts it anew; the one that ran has ended, and takes nothing that comes later."""


@dataclass(frozen=True)
class UserFault:
    """One fault.

    :param plant: commands of a shell, as root in a guest that runs.
    :param says: regular expressions that the diagnosis has, whatever their case.
    :param harmless: it does not keep a deployment from being done, and so is not to be named.
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
    """Plant the fault in a server, deploy something, and hold what is said to what it has."""
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
