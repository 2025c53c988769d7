"""The events that concern one server, as they are when they are looked at."""

from __future__ import annotations

from types import SimpleNamespace

from hotplate.events.kinds import ServiceRequest
from hotplate.events.log import EventLog
from hotplate.trial.guest_probe import follow


def test_signal_that_is_being_answered_is_seen():
    """Heat ends the stack as soon as it has the signal, whose request is in the log only then."""

    class LateLog(EventLog):
        def settle(self) -> bool:
            path = "/v1/signal/arn/stacks/stack-1/id/resources/deployment"
            self.add(ServiceRequest("POST", path, 200, side="guest"), source="cfn", server="web")
            return True

    server = SimpleNamespace(spec=SimpleNamespace(id="web"))
    seen, _ = follow(LateLog(), server, since=0, stacks=["stack-1"])
    assert [event.source for event in seen] == ["cfn"]
