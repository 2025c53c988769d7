"""What Heat expects of a server, as events: its deployments, and where its agent is to poll.

Two events say it.  ``harness/user-data`` comes when a server is booted and has the parts of its
user data (``parts``), where the agent has to poll (``sources``: ``cfn``, ``heat``, ``request``,
``zaqar``) and which wait condition handles it names (``handles``).  ``harness/expected`` comes
whenever Heat changes what it serves to a server, and has all of its deployments (``deployments``).
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from enum import StrEnum

from hotplate.events.event import Event
from hotplate.events.kinds import ServedDeployments
from hotplate.events.log import EventLog


class Transport(StrEnum):
    """How a deployment is to be signalled: Heat's ``signal_transport``."""

    CFN = "CFN_SIGNAL"
    TEMP_URL = "TEMP_URL_SIGNAL"
    HEAT = "HEAT_SIGNAL"
    ZAQAR = "ZAQAR_SIGNAL"
    NONE = "NO_SIGNAL"


@dataclass(frozen=True)
class ExpectedDeployment:
    """One deployment as Heat serves it to a server.

    :param id: of its derived config, by which the guest knows it; a new one with each action.
    :param stack: the id of the stack that it belongs to.
    :param label: the resource with those that it is nested in, such as ``servers.0.deployment``.
    :param signal: the part of a path by which its signal is known, "" when none is to come.
    """

    id: str
    name: str = ""
    group: str = ""
    stack: str = ""
    resource: str = ""
    label: str = ""
    transport: str = Transport.CFN
    action: str = "CREATE"
    signal: str = ""

    def is_signalled_by(self, path: str) -> bool:
        """Return True when a request for ``path`` (decoded) is this deployment's signal."""
        return bool(self.signal) and bool(re.search(rf"{re.escape(self.signal)}(?:[/?]|$)", path))


def emit(events: EventLog, server: str, deployments: list[ExpectedDeployment]) -> None:
    """Say what Heat expects of a server from now on."""
    events.add(ServedDeployments([asdict(each) for each in deployments]), server=server)


def deployments(event: Event) -> list[ExpectedDeployment] | None:
    """Return the deployments that an event says a server is to have, None for any other event."""
    served = ServedDeployments.of(event)
    return None if served is None else [ExpectedDeployment(**each) for each in served.deployments]
