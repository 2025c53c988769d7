"""Asks a guest what is wrong with it, where it can be asked, for the diagnosis."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from hotplate.deadline import DeadlineExceeded
from hotplate.errors import HotplateError
from hotplate.events import Event, EventLog
from hotplate.server import Server
from hotplate.verdict import probes
from hotplate.verdict.diagnosis import Diagnosis, diagnose
from hotplate.verdict.stages import Stage
from hotplate.verdict.tracker import StageTracker

SECONDS = 20.0


def ask_guest(events: EventLog, server: Server, missing: Stage | None) -> None:
    """Emit the guest's answers to the questions that are worth asking; it may be out of reach.

    :param missing: the first stage that was not reached, None when all were.
    """
    if not server.machine.running:
        return
    with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
        shell = server.shell(seconds=SECONDS)
        for probe in probes.for_stage(missing or Stage.SIGNAL_ACCEPTED):
            with contextlib.suppress(DeadlineExceeded):
                answer = shell.run(probe.command, timeout=SECONDS)
                # What is not there is said on stderr.
                text = (answer.stdout + answer.stderr).decode(errors="replace").rstrip("\n")
                probes.report(events, server.spec.id, probe, status=answer.rc, text=text)


def diagnose_since(
    events: EventLog,
    server: Server,
    *,
    since: int,
    stacks: Iterable[str],
    status: str,
    reason: str = "",
    said: dict[str, str] | None = None,
) -> Diagnosis | None:
    """Why what was asked of a server that ran already did not come to its end; None when it did.

    :param since: the length of ``events`` when the server was started.
    :param stacks: whose events concern the server.
    :param status: of the stack that was waited for, such as ``CREATE_IN_PROGRESS``.
    :param reason: Heat's for it.
    :param said: see :func:`hotplate.verdict.diagnosis.diagnose`.
    """
    names = set(stacks)

    def ours(event: Event) -> bool:
        return event.source != "stack" or event.detail.get("stack") in names

    def follow() -> tuple[list[Event], StageTracker]:
        seen = [event for event in events.since(since) if ours(event)]
        tracker = StageTracker(EventLog(), server.spec.id)
        for event in seen:
            tracker.see(event)
        return seen, tracker

    _, tracker = follow()
    ask_guest(events, server, tracker.missing())
    seen, tracker = follow()
    return diagnose(seen, tracker, stack_status=status, stack_reason=reason, said=said)
