"""Ask a guest for its state, where it can be asked, for the diagnosis."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from hotplate.errors import HotplateError
from hotplate.events import classify
from hotplate.events.event import Event
from hotplate.events.kinds import GuestJournal, StackResource
from hotplate.events.log import EventLog
from hotplate.guest.base import BOOT_END, Guest
from hotplate.guest.shell import Shell
from hotplate.report.artifacts import Folder
from hotplate.testbed.server import Server
from hotplate.timing import host_speed
from hotplate.timing.deadline import DeadlineExceeded
from hotplate.trial.disk_probe import look_at_disk
from hotplate.verdict import probes
from hotplate.verdict.diagnosis import Diagnosis, diagnose
from hotplate.verdict.hook_output import HookOutput
from hotplate.verdict.noticed import notable
from hotplate.verdict.stages import ORDER, Stage
from hotplate.verdict.tracker import StageTracker

SECONDS = 20.0
#: The time to wait for the logs of a guest that may not answer any more.
LOG_SECONDS = 5.0

#: The results of hooks, as this runner and that of heat-agents keep them.
RESULTS = "/var/lib/heat-config/deployed"

JOURNAL = "journal.txt"
GUEST_LOGS = {
    JOURNAL: "journalctl --boot --no-pager --output short-monotonic",
    "cloud-init.log": "cat /var/log/cloud-init.log",
    "heat-config.txt": "heat-config status",
}


def wait_for_boot(connect: Callable[[], Guest], *, seconds: float) -> str:
    """Wait until the boot of a guest has ended; return "" when it has, else a sentence.

    :param connect: returns a connection to it.
    :param seconds: the longest time to wait.
    :raises HotplateError: when the guest cannot be asked.
    """
    try:
        connect().run(BOOT_END, timeout=seconds)
    except DeadlineExceeded:
        return f"its boot has not ended after another {seconds:.0f} s"
    return ""


def ask_guest(events: EventLog, server: Server, missing: Stage | None) -> bool:
    """Emit the guest's answers to the questions that are worth asking.

    For a guest that is off, accepts no connection or gives no answer, its disk is read.

    :param missing: the first stage that was not reached, None when all were.
    :return: True when the guest accepted a connection.
    """
    missing = missing or Stage.SIGNAL_ACCEPTED
    shell = None
    if server.machine.running and (missing is not Stage.BOOTED or _may_have_shell(events, server)):
        shell = _way_in(server, missing)
    if shell is not None and _ask_inside(events, server, shell, missing):
        return True
    disk = server.machine.disk
    if disk is not None and (text := look_at_disk(disk)):
        probes.report_disk(events, server.spec.id, text)
    return shell is not None


def _may_have_shell(events: EventLog, server: Server) -> bool:
    """Return False for a guest that has had no metadata, by which it learns of the shell."""
    if not server.machine.shell_by_metadata:
        return True
    return any(each.server == server.spec.id and classify.is_request(each) for each in events)


def _way_in(server: Server, missing: Stage) -> Shell | None:
    """Return the shell of a running guest, None when it accepts no connection."""
    # Without metadata it does not know of the shell.
    early = ORDER.index(missing) <= ORDER.index(Stage.METADATA_SERVED)
    try:
        return server.shell(seconds=LOG_SECONDS if early else SECONDS)
    except (HotplateError, DeadlineExceeded, OSError):
        return None


def _ask_inside(events: EventLog, server: Server, shell: Shell, missing: Stage) -> bool:
    """Ask a guest by its shell; return False when it gives no answer."""
    answered = False
    with contextlib.suppress(HotplateError, OSError):
        for probe in probes.for_stage(missing):
            with contextlib.suppress(DeadlineExceeded):
                asked = time.time()
                seconds = SECONDS * (3 if probe.name == "health" else 1) * host_speed.factor()
                answer = shell.run(probe.command, timeout=seconds)
                answered = True
                # Missing files and programs are reported on stderr.
                text = (answer.stdout + answer.stderr).decode(errors="replace").rstrip("\n")
                if probe.name == "health":
                    text = f"=== asked\n{asked:.0f}\n{text}"
                probes.report(events, server.spec.id, probe, status=answer.rc, text=text)
    return answered


def save_logs(server: Server, target: Path, *, events: EventLog) -> None:
    """Save the guest's logs in a folder, where it accepts a connection.

    The journal and cloud-init's log hold neither inputs nor outputs; the logs of the hooks may, and
    stay in the guest.

    :param events: gets the lines of the journal about failures, and the standard checks' answer.
    """
    if not server.machine.running:
        return
    with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
        shell = server.guest(seconds=LOG_SECONDS)
        clock = shell.run(probes.CLOCK.command, timeout=SECONDS)
        text = clock.stdout.decode(errors="replace")
        probes.report(events, server.spec.id, probes.CLOCK, status=clock.rc, text=text)
        for name, command in GUEST_LOGS.items():
            answer = shell.run(command, timeout=SECONDS)
            Folder(target).write(name, answer.stdout)
            if name == JOURNAL and (lines := notable(answer.stdout.decode(errors="replace"))):
                events.add(GuestJournal(lines), server=server.spec.id)
        check_standard(events, server.spec.id, shell)


def read_unsent(server: Server, configs: Iterable[str]) -> dict[str, HookOutput]:
    """Return the output of hooks for which Heat wants no signal, by the id of the config.

    :param configs: the ids; nothing is returned for those whose output the guest does not have.
    """
    outputs = {}
    with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
        shell = server.shell(seconds=LOG_SECONDS)
        for config in configs:
            answer = shell.run(
                f"cat {shlex.quote(f'{RESULTS}/{config}.notify.json')}", timeout=SECONDS
            )
            # Deeply nested JSON ends in a RecursionError.
            with contextlib.suppress(ValueError, RecursionError):
                values = json.loads(answer.stdout)
                if isinstance(values, dict):
                    outputs[config] = HookOutput.of(values)
    return outputs


def check_standard(events: EventLog, server: str, guest: Guest) -> None:
    """Emit a guest's answer to the standard checks.

    :param guest: as root, or as a user with ``sudo``.
    :raises HotplateError: and DeadlineExceeded, when the guest cannot be asked.
    """
    answer = guest.run(probes.STANDARD.command, timeout=SECONDS * host_speed.factor())
    text = answer.stdout.decode(errors="replace")
    probes.report(events, server, probes.STANDARD, status=answer.rc, text=text)


def follow(
    events: EventLog, server: Server, *, since: int, stacks: Iterable[str]
) -> tuple[list[Event], StageTracker]:
    """Return the events that concern a server, and a tracker of its stages.

    :param since: the length of ``events`` when the server was started.
    :param stacks: the stacks with events about the server.
    """
    # A stack may have ended by a signal whose request is still being answered.
    events.settle()
    names = set(stacks)
    tracker = StageTracker(EventLog(), server.spec.id)
    seen = []
    for event in events.since(since):
        others = event.server not in ("", server.spec.id)
        change = StackResource.of(event)
        if not others and (change is None or change.stack in names):
            seen.append(event)
            tracker.see(event)
    return seen, tracker


def diagnose_since(
    events: EventLog,
    server: Server,
    *,
    since: int,
    stacks: Iterable[str],
    status: str,
    reason: str = "",
    hook_outputs: dict[str, HookOutput] | None = None,
) -> Diagnosis | None:
    """Return why an action on a running server did not succeed; None when it did.

    :param since: and ``stacks``: see :func:`follow`.
    :param status: of the stack that was waited for, such as ``CREATE_IN_PROGRESS``.
    :param reason: Heat's for it.
    :param hook_outputs: see :func:`hotplate.verdict.diagnosis.diagnose`.
    """
    _, tracker = follow(events, server, since=since, stacks=stacks)
    ask_guest(events, server, tracker.missing())
    seen, tracker = follow(events, server, since=since, stacks=stacks)
    return diagnose(
        seen, tracker, stack_status=status, stack_reason=reason, hook_outputs=hook_outputs
    )
