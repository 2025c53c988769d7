"""The progress of one deployment on one server, and of one signal for a wait condition."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hotplate.events import classify
from hotplate.events.event import Event
from hotplate.events.expected import ExpectedDeployment, Transport
from hotplate.events.kinds import StackResource
from hotplate.verdict.stages import ORDER, PER_DEPLOYMENT, Mark, Stage, first_missing

#: The stages of a deployment for which Heat wants no signal.
UNSIGNALLED = PER_DEPLOYMENT[: PER_DEPLOYMENT.index(Stage.SIGNAL_RECEIVED)]
SIGNALS = (Stage.SIGNAL_RECEIVED, Stage.SIGNAL_ACCEPTED)


@dataclass
class DeploymentTrack:
    """The progress of one deployment on one server.

    :param id: the id of its config as the guest knows it.
    :param expected: the deployment as Heat serves it; None when Heat does not.
    :param withdrawn: Heat does not serve it any more, after an update or a delete.
    :param rejected: why the runner did not start a hook for it, "" when it did.
    :param failed: why it failed, "" when it did not.
    :param failed_at: seconds on the monotonic clock.
    """

    id: str
    name: str = ""
    group: str = ""
    expected: ExpectedDeployment | None = None
    withdrawn: bool = False
    rejected: str = ""
    failed: str = ""
    failed_at: float = 0.0
    marks: dict[Stage, Mark] = field(default_factory=dict)

    @property
    def named(self) -> str:
        """Its label and group, which distinguish it from others."""
        return f'deployment "{self.label}"' + (f", {self.group}" if self.group else "")

    @property
    def label(self) -> str:
        """The resource with its parents; the config's name where Heat gives none."""
        return (self.expected.label if self.expected else "") or self.name or self.id

    @property
    def key(self) -> tuple[str, str]:
        """Stack and resource, which identify it in Heat's events."""
        return (self.expected.stack, self.expected.resource) if self.expected else ("", "")

    @property
    def silent(self) -> bool:
        """True when Heat wants no signal."""
        return self.expected is not None and self.expected.transport == Transport.NONE

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that it can reach."""
        return UNSIGNALLED if self.silent else PER_DEPLOYMENT

    @property
    def due(self) -> tuple[Stage, ...]:
        """The stages that it has to reach."""
        return () if self.withdrawn else self.stages

    def missing(self) -> Stage | None:
        """Return the first due stage that was not reached, None when all were."""
        if self.rejected and self.due:
            return Stage.HOOK_STARTED
        return first_missing(set(self.marks), self.due)

    def expect(self, wanted: ExpectedDeployment) -> None:
        """Store Heat's description of it."""
        self.expected, self.withdrawn = wanted, False
        self.name, self.group = self.name or wanted.name, self.group or wanted.group

    def is_signalled_by(self, path: str) -> bool:
        """Return True when a request for ``path`` is its signal."""
        return self.expected is not None and self.expected.is_signalled_by(path)

    def is_accepted_by(self, event: Event) -> bool:
        """Return True when an event of its resource means that Heat accepted its signal.

        False when the resource ended without one: by a timeout, for example.
        """
        if self.silent or self.withdrawn:
            return False
        change = StackResource.of(event)
        return (
            classify.is_signal_taken(event)
            or (change is not None and change.status == "COMPLETE")
            or (classify.is_failure(event) and Stage.SIGNAL_RECEIVED in self.marks)
        )

    def finish(self, status: int | None, at: float) -> None:
        """Note the end of the hook; without a signal nobody else reports its failure."""
        if self.silent and status:
            self.fail(f"the hook ended with status {status}", at)

    def fail(self, reason: str, at: float) -> None:
        """Note why it failed, first reason only; a cancelled one did not fail by itself."""
        cancelled = "aborted" in reason or "cancelled" in reason
        if not self.failed and not self.withdrawn and not cancelled:
            self.failed, self.failed_at = reason or "Heat gave no reason", at


@dataclass
class WaitSignal:
    """A signal that a server can send to a wait condition handle, as its user data has the URL.

    It is due while the wait condition waits; a server that need not send it is not expected to.

    :param awaited: a wait condition of its stack is not complete.
    """

    stack: str
    handle: str
    awaited: bool = False
    marks: dict[Stage, Mark] = field(default_factory=dict)
    stages = SIGNALS
    id = ""
    group = ""

    @property
    def named(self) -> str:
        """The handle's name, which distinguishes it from others."""
        return f'wait condition handle "{self.handle}"'

    @property
    def label(self) -> str:
        """The handle's own name."""
        return self.handle

    @property
    def key(self) -> tuple[str, str]:
        """Stack and handle, which identify it in Heat's events."""
        return (self.stack, self.handle)

    @property
    def due(self) -> tuple[Stage, ...]:
        """The stages to reach: none while nothing waits for it and nothing came."""
        return SIGNALS if self.awaited or self.marks else ()

    def missing(self) -> Stage | None:
        """Return the first due stage that was not reached, None when all were."""
        return first_missing(set(self.marks), self.due)

    def is_signalled_by(self, path: str) -> bool:
        """Return True when a request for ``path`` is this signal."""
        address = rf"/{re.escape(self.stack)}/resources/{re.escape(self.handle)}(?:[/?]|$)"
        return re.search(address, path) is not None

    def is_accepted_by(self, event: Event) -> bool:
        """Return True when an event of the handle means that Heat accepted the signal."""
        change = StackResource.of(event)
        return change is not None and change.action == "SIGNAL"


def furthest(stage: Stage | None) -> int:
    """Return the rank of a server's progress, given its first missing stage."""
    return len(ORDER) if stage is None else ORDER.index(stage)
