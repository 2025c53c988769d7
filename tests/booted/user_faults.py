"""A fault as a user makes it in a running guest, and its expected diagnosis."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from hotplate.plugin.pool import ServerPool
from hotplate.plugin.server import ServerUnderTest
from hotplate.stacks.deployment import Deployment
from hotplate.timing.deadline import DeadlineExceeded, GuestDeadline
from hotplate.verdict.diagnosis import Diagnosis

#: Seconds between two diagnoses of a deployment that cannot finish, and those until the last.
LOOK = 1.0
GIVE_UP = 120.0

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


def diagnosed(
    server: ServerUnderTest, deployment: Deployment, named: Callable[[Diagnosis], bool]
) -> Diagnosis | None:
    """Return the first diagnosis that names the cause, else that of the end or of giving up."""
    deadline = GuestDeadline(GIVE_UP, "the diagnosis")
    while True:
        last = deadline.passed
        with contextlib.suppress(DeadlineExceeded):
            deployment.wait(seconds=LOOK)
        diagnosis = server.diagnosis()
        if last or deployment.status != "IN_PROGRESS" or (diagnosis and named(diagnosis)):
            return diagnosis


def is_named(pool: ServerPool, fault: UserFault) -> None:
    """Plant the fault in a server, deploy, and compare the diagnosis with ``says``."""
    server = pool.server()
    try:
        server.run(fault.plant, timeout=600)
        deployment = server.deploy(
            group="script", config="#!/bin/sh\ntrue\n", transport=fault.transport
        )
        if fault.harmless:
            assert deployment.wait().status == "COMPLETE"
            return

        def says(diagnosis: Diagnosis) -> bool:
            return all(re.search(each, str(diagnosis), re.IGNORECASE) for each in fault.says)

        diagnosis = diagnosed(server, deployment, says)
        assert diagnosis is not None, deployment
        print(f"{diagnosis.fault}: {diagnosis}")
        assert says(diagnosis), diagnosis
    finally:
        pool.give_back(server)
