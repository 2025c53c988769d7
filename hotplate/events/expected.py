"""Events with Heat's expectations of a server: its deployments, and where its agent has to poll.

Two events carry them.  ``harness/user-data`` comes when a server is booted and has the parts of
its user data (``parts``), where the agent has to poll (``sources``: ``cfn``, ``heat``,
``request``, ``zaqar``) and the wait condition handles in it (``handles``).  ``harness/expected``
comes whenever Heat changes the server's deployments, and has all of them (``deployments``).
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
    """A deployment as Heat serves it to a server.

    :param id: of its derived config, by which the guest knows it; a new one with each action.
    :param stack: the id of the stack that it belongs to.
    :param label: the resource and its parents, such as ``servers.0.deployment``.
    :param signal: the part of a path that identifies its signal, "" when it has none.
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
    """Emit Heat's current expectations of a server."""
    events.add(ServedDeployments([asdict(each) for each in deployments]), server=server)


def deployments(event: Event) -> list[ExpectedDeployment] | None:
    """Return the deployments in an event of :func:`emit`, None for any other event."""
    served = ServedDeployments.of(event)
    return None if served is None else [ExpectedDeployment(**each) for each in served.deployments]
