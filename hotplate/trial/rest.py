"""Detect a guest at rest: its boot has ended, nothing works in it, and nothing is to come.

A guest at rest that has not reached the stage that Heat waits for will not reach it later either,
so it can be judged at once.  A guest that is only slow is never at rest: it uses its processor,
systemd has jobs in its queue, or a program of the agent's runs, such as a hook that sleeps for
ten minutes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

from hotplate.errors import HotplateError
from hotplate.events import classify
from hotplate.events.event import Event
from hotplate.events.kinds import MachineExit
from hotplate.guest.base import CommandResult
from hotplate.machine.machine import Work
from hotplate.testbed.server import Server
from hotplate.timing import host_speed
from hotplate.timing.deadline import DeadlineExceeded
from hotplate.trial.guests import Guests
from hotplate.verdict.deployment_track import WaitSignal
from hotplate.verdict.guest_boot import is_menu
from hotplate.verdict.health import AGENT
from hotplate.verdict.stages import BOOT, Stage
from hotplate.verdict.tracker import StageTracker

#: The time without news before guests are looked at, and between two looks.
LOOK_SECONDS = 10.0

#: Of one processor: an idle guest uses less.
IDLE = 0.2

#: Of the time: a thread of an idle guest's machine is ready to run for less, on a busy host too.
READY = 0.6

#: A running agent without a request in this time will make none; it polls every 30 seconds by
#: default, and waits up to 10 for an answer.
SILENT_SECONDS = 45.0

SAME_POLLS = 3
#: Restarts after which a crashing agent counts as broken.
RESTARTS = 5

_SHELL_SECONDS = 3.0
_COMMAND_SECONDS = 15.0
_QUESTION = f"""\
systemctl is-system-running
systemctl show --property=LoadState,ActiveState,NRestarts,TriggeredBy {AGENT}
systemctl list-jobs --no-legend --no-pager | sed 's/^/job /'
group=$(systemctl show --property=ControlGroup --value {AGENT})
if [ -n "$group" ]; then
    cat /sys/fs/cgroup$group/cgroup.procs /sys/fs/cgroup/systemd$group/cgroup.procs |
        sed 's/^/process /'
fi
ip -brief address | sed 's/^/address /'
lock=/run/os-refresh-config.lock
if [ -e $lock ] && ! flock --nonblock $lock true; then echo locked; fi
"""


@dataclass(frozen=True)
class InGuest:
    """A guest's own report of its state.

    :param booted: systemd has started everything, or tried to.
    :param busy: a part of the boot or of the agent is at work.
    :param agent: the state of the agent's unit, as systemd calls it; "" when there is none, or when
        another unit starts it, at an unknown time.
    :param online: a device that is not down has an address, by which its agent can send requests.
    :param restarts: how often systemd has started the agent again.
    """

    booted: bool
    busy: bool
    agent: str
    online: bool
    restarts: int

    @classmethod
    def read(cls, text: str) -> InGuest:
        """Parse the answer to the question."""
        lines = text.splitlines()
        values = dict(line.split("=", 1) for line in lines if "=" in line)
        jobs = [line for line in lines if line.startswith("job ") and AGENT not in line]
        processes = [line for line in lines if line.startswith("process ")]
        devices = [line.split() for line in lines if line.startswith("address ")]
        restarts = values.get("NRestarts", "")
        elsewhere = values.get("LoadState") == "not-found" or bool(values.get("TriggeredBy"))
        return cls(
            booted=lines[:1] in (["running"], ["degraded"]),
            busy=bool(jobs) or "locked" in lines or len(processes) > 1,
            agent="" if elsewhere else values.get("ActiveState", ""),
            online=not devices or any(map(_carries, devices)),
            restarts=int(restarts) if restarts.isdigit() else 0,
        )

    @property
    def cut_off(self) -> bool:
        """True when nothing is at work that could bring up a link of the guest's."""
        return self.booted and not self.busy and not self.online

    @property
    def crashing(self) -> bool:
        """True when the agent is restarted again and again."""
        return self.restarts >= RESTARTS


class Rest:
    """Checks whether the guests of a run have come to rest."""

    def __init__(self, guests: Guests) -> None:
        self._guests = guests
        self._work: dict[str, tuple[float, Mapping[str, Work]]] = {}

    def why(self) -> str:
        """Return why nothing more is to be expected, "" while something may be.

        Takes some seconds; to be asked after :data:`LOOK_SECONDS` without news.
        """
        waited_for = []
        for identity, tracker in list(self._guests.trackers.items()):
            server = self._guests.server(identity)
            if server is None:
                return ""
            off = not server.machine.running
            if off and not self._switched_itself_off(server):
                return ""
            if not is_waited_for(tracker):
                continue
            if not off and not self._at_rest(server, tracker):
                return ""
            waited_for.append(server.spec.name)
        if not waited_for:
            return ""
        names = " and ".join(f'"{name}"' for name in sorted(waited_for))
        return f"{names} came to rest without what is due"

    def _at_rest(self, server: Server, tracker: StageTracker) -> bool:
        idle = self._is_idle(server)
        # GRUB waits for a key in a loop that is never idle.
        if is_menu(server.machine.console.lines):
            return True
        # Between its shutdown and its next boot a guest is idle.
        if tracker.boots.rebooting:
            return False
        missing = tracker.missing_before_answers()
        if missing is None:
            # Only its network is missing, and it has been asked for that all the time.
            return idle and tracker.boots.ended and self._is_cut_off(server)
        # The guest learns of the shell from its metadata: before, do not wait for one.
        if missing in BOOT and not tracker.boots.ended:
            return False
        inside = ask(server)
        if inside is None:
            return idle and tracker.boots.ended and tracker.missing() is not Stage.HOOK_FINISHED
        if not inside.booted or inside.busy:
            return False
        if inside.crashing:
            return True
        if inside.agent == "active":
            return idle and (not inside.online or self._agent_has_done(server))
        if tracker.asked:
            # An image without an agent: what its boot has started has ended.
            return idle
        if Stage.AGENT_POLLED not in tracker.expected:
            # No agent is waited for, whatever would start one.
            silent = self._is_silent(self._guests.events_of(server))
            return idle and (not inside.online or silent)
        return idle and inside.agent in ("inactive", "failed")

    def _switched_itself_off(self, server: Server) -> bool:
        """Return True when a guest's machine is off because the guest wanted that."""
        ends = filter(None, map(MachineExit.of, self._guests.events_of(server)))
        return [each.reason for each in ends][-1:] == ["guest-shutdown"]

    def _is_idle(self, server: Server) -> bool:
        """Return True when the machine ran little since the last look, and waited little to run."""
        now, work = time.monotonic(), server.machine.work()
        at, before = self._work.get(server.spec.id, (now, {}))
        self._work[server.spec.id] = now, work
        return now - at >= LOOK_SECONDS / 2 and is_idle(before, work, now - at)

    def _is_cut_off(self, server: Server) -> bool:
        """Return True when a guest reports that no link of its is up, or has been silent long."""
        inside = ask(server)
        if inside is not None and inside.cut_off:
            return True
        return self._is_silent(self._guests.events_of(server))

    def _agent_has_done(self, server: Server) -> bool:
        """Return True when the running agent polls without success or not at all."""
        mine = self._guests.events_of(server)
        polls = [event for event in mine if classify.is_poll(event)]
        if len(polls) > SAME_POLLS:
            news = max((e.at for e in self._guests.events if e.source == "stack"), default=0.0)
            return polls[-1 - SAME_POLLS].at > news and len(set(map(_answer, polls[-4:]))) == 1
        return self._is_silent(mine)

    def _is_silent(self, events: list[Event]) -> bool:
        """Return True when a guest has sent no request and written nothing for long."""
        spoken = [e.at for e in events if classify.is_request(e) or e.source == "console"]
        silent = time.monotonic() - max(spoken, default=0.0)
        return silent > SILENT_SECONDS * host_speed.factor()


def is_waited_for(tracker: StageTracker) -> bool:
    """Return True when a due stage depends on this server's boot or its agent.

    A wait condition's signal does not: any program in a guest may send it at any time.
    """
    if isinstance(tracker.stuck(), WaitSignal):
        return False
    return tracker.missing() is not None or (tracker.checked and not tracker.network_answered)


def _carries(row: list[str]) -> bool:
    """Return whether a device can send: a row ``address NAME STATE ADDRESS ...`` of ip-address(8).

    A device that is switched off keeps its address, and each one that is on has a link-local one.
    """
    addresses = [word for word in row[3:] if "/" in word and not word.startswith("fe80:")]
    return row[1] != "lo" and bool(addresses) and row[2] not in ("DOWN", "LOWERLAYERDOWN")


def _answer(event: Event) -> tuple[object, ...]:
    return classify.status(event), str(classify.deployment_ids(event))


def ask(server: Server) -> InGuest | None:
    """Return the guest's report; None when it cannot be asked."""
    answer = run_in(server, _QUESTION)
    return InGuest.read(answer.stdout.decode(errors="replace")) if answer is not None else None


def run_in(server: Server, command: str) -> CommandResult | None:
    """Return the result of a command in a guest; None when it cannot be asked."""
    with contextlib.suppress(HotplateError, DeadlineExceeded, OSError):
        return server.shell(seconds=_SHELL_SECONDS).run(command, timeout=_COMMAND_SECONDS)
    return None


def is_idle(before: Mapping[str, Work], after: Mapping[str, Work], seconds: float) -> bool:
    """Return True when the threads of a machine ran little in some seconds, and waited little.

    A working guest on a busy host runs little too; but then it waits for its turn all the time.
    """
    done = [each.since(before.get(thread, Work())) for thread, each in after.items()]
    if not done:
        return False
    return sum(each.ran for each in done) < IDLE * seconds and all(
        each.ran + each.waited < READY * seconds for each in done
    )
