"""Check at the end of each guest's boot that its network is up.

A guest's request for its metadata proves the network for that moment only: cloud-init's first
stage has a lease of its own, which ends with the stage, and a config drive needs no network.  So
a guest is asked when its boot has ended: by ARP and by IPv6's neighbour discovery, on each port
that Neutron gave it.  Its kernel answers them independent of the programs in it and of the source
of its address.  An isolated machine, in QEMU's user-mode network, cannot be asked so; there a
request after its boot proves the network, or its routes, which its kernel drops with the link and
the address.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address

from hotplate.errors import HotplateError
from hotplate.events import classify
from hotplate.events.kinds import BootEnd, NetworkAnswer
from hotplate.machine.wiring import METADATA_ADDRESS
from hotplate.testbed.server import Server
from hotplate.timing import host_speed
from hotplate.timing.deadline import Deadline, GuestDeadline, retry
from hotplate.trial.guests import Guests
from hotplate.trial.rest import LOOK_SECONDS, ask, run_in
from hotplate.verdict.stages import Stage
from hotplate.verdict.tracker import StageTracker

#: The time at the end for which a guest that has not answered is asked.
ANSWER_SECONDS = 20.0

#: The silence after which a boot counts as ended where neither console nor shell shows its end;
#: an isolated guest without a shell has the same time for a request.
QUIET_SECONDS = 30.0

_ROUTES = "cat /proc/net/route"
_UP, _REJECT = 0x0001, 0x0200


@dataclass
class _Question:
    """The question to a guest in one of its boots.

    :param boot: its number.
    :param since: the length of the event log when it was asked first.
    :param began: seconds on the monotonic clock then.
    :param shell: when its shell may be asked again.
    :param inside: the last answer of its shell.
    """

    boot: int
    since: int
    began: float
    shell: Deadline
    inside: NetworkAnswer


class NetworkCheck:
    """Checks the guests of a run, and adds a :class:`NetworkAnswer` for each boot of each.

    :param own_network_data: names of servers that may have other addresses than Neutron's.
    """

    def __init__(self, guests: Guests, *, own_network_data: Collection[str] = ()) -> None:
        self._guests = guests
        self._events = guests.events
        self._own_network_data = own_network_data
        self._questions: dict[str, _Question] = {}

    def look(self) -> None:
        """Ask the guests whose boot has ended, and add the answers so far."""
        for server, tracker in self._open():
            if tracker.boots.ended:
                asked = self._question(server, tracker)
                answer = self._answer(server, asked)
                if answer.up or (answer.up is None and _is_late(asked)):
                    self._events.add(answer, server=server.spec.id)
            elif _only_the_end_is_due(tracker):
                self._ask_for_the_end(server, self._question(server, tracker))

    def conclude(self) -> None:
        """Get an answer from each guest, which may be that its network is not up.

        A guest that misses another stage is judged by that.
        """
        for server, tracker in self._open():
            if tracker.missing_before_answers() is not None:
                continue
            asked = self._question(server, tracker)
            # A guest that is asked now for the first time has its time to answer.
            asked.shell.end()

            def attempt(
                last_try: bool, server: Server = server, asked: _Question = asked
            ) -> NetworkAnswer | None:
                answer = self._answer(server, asked)
                return None if answer.up is False and not last_try else answer

            inside = ask(server)
            # A guest that says itself that it is offline is not waited for.
            seconds = 0.0 if inside is not None and inside.cut_off else ANSWER_SECONDS
            deadline = GuestDeadline(seconds, "an answer of the guest's network")
            self._events.add(retry(attempt, deadline, every=0.5), server=server.spec.id)

    # -- inside ----------------------------------------------------------------------------------

    def _open(self) -> Iterator[tuple[Server, StageTracker]]:
        """Yield the running guests that have not answered in this boot."""
        for server, tracker in self._guests.settled():
            if not tracker.network_answered:
                yield server, tracker

    def _question(self, server: Server, tracker: StageTracker) -> _Question:
        number = tracker.boots.number
        asked = self._questions.get(server.spec.id)
        if asked is None or asked.boot != number or (tracker.boots.ended and not asked.since):
            since = len(self._events) if tracker.boots.ended else 0
            nothing = NetworkAnswer(None, "nothing shows whether its network is up")
            asked = _Question(number, since, time.monotonic(), Deadline(0, "its shell"), nothing)
            self._questions[server.spec.id] = asked
            # Its earlier answers came before the question.
            _silent_ports(server)
        return asked

    def _answer(self, server: Server, asked: _Question) -> NetworkAnswer:
        own = server.spec.name in self._own_network_data
        if server.machine.wiring.networked and not own:
            silent = _silent_ports(server)
            if silent:
                return NetworkAnswer(False, f"the guest does not answer at {' and '.join(silent)}")
            return NetworkAnswer(True, "it answered when its boot had ended")
        if any(classify.is_request(each) for each in self._guests.events_of(server, asked.since)):
            return NetworkAnswer(True, "it asked for something when its boot had ended")
        if asked.shell.passed and not own:
            asked.inside = _routed(server) or asked.inside
            asked.shell = Deadline(LOOK_SECONDS, "its shell")
        return asked.inside

    def _ask_for_the_end(self, server: Server, asked: _Question) -> None:
        """Check for the end of a boot that the console does not show."""
        heard = [
            each.at
            for each in self._guests.events_of(server)
            if each.source == "console"
            or (classify.is_request(each) and not classify.is_poll(each))
        ]
        quiet = time.monotonic() - max(heard, default=asked.began)
        if quiet < min(LOOK_SECONDS, QUIET_SECONDS) or not asked.shell.passed:
            return
        asked.shell = Deadline(min(LOOK_SECONDS, QUIET_SECONDS), "its shell")
        inside = ask(server)
        if inside is not None and inside.booted:
            self._events.add(BootEnd("systemd has started everything"), server=server.spec.id)
        elif inside is None and quiet > QUIET_SECONDS * host_speed.factor():
            text = f"nothing was heard of it for {quiet:.0f} s"
            self._events.add(BootEnd(text), server=server.spec.id)


def _only_the_end_is_due(tracker: StageTracker) -> bool:
    missing = tracker.missing_before_answers()
    # Of a guest that reads no metadata, nothing but this check shows the network.
    unread = missing is Stage.NETWORK_UP and Stage.METADATA_SERVED in tracker.absent
    return missing is None or unread


def _is_late(asked: _Question) -> bool:
    waited = time.monotonic() - asked.began
    # The host is measured only when it matters: that takes part of a second.
    return waited > QUIET_SECONDS and waited > QUIET_SECONDS * host_speed.factor()


def _silent_ports(server: Server) -> list[str]:
    """Return the addresses for which a guest has not answered, and ask for them again."""
    if not server.machine.wiring.networked:
        return []
    # A port that comes or goes meanwhile is checked the next time.
    with contextlib.suppress(HotplateError, ValueError):
        return [where for where, answered in server.links.ask().items() if not answered]
    return ["its ports"]


def _routed(server: Server) -> NetworkAnswer | None:
    """Return the answer from a guest's routes; None when they cannot be read."""
    answer = run_in(server, _ROUTES)
    if answer is None or answer.rc:
        return None
    if device := route_to(METADATA_ADDRESS, answer.stdout.decode(errors="replace")):
        return NetworkAnswer(True, f'it had a route by "{device}" when its boot had ended')
    return NetworkAnswer(False, f"the guest has no route to {METADATA_ADDRESS}, nor any other way")


def route_to(address: str, table: str) -> str:
    """Return the device by which an address is reached; "" when there is none.

    :param table: Linux's ``/proc/net/route`` (fib_trie.c), whose numbers are in the processor's
        order of bytes, which is little-endian on every one that we boot.
    """
    target = int.from_bytes(IPv4Address(address).packed, "little")
    for line in table.splitlines()[1:]:
        words = line.split()
        try:
            device, to, flags, mask = words[0], *(int(words[place], 16) for place in (1, 3, 7))
        except (IndexError, ValueError):
            continue
        if device != "lo" and target & mask == to and flags & _UP and not flags & _REJECT:
            return device
    return ""
