"""Interfaces of a running server, on real segments; the machine only records calls.

Real guests get interfaces in test_networked_servers.py and test_stack_of_tiny_guests.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ports import port, spec

from hotplate.errors import UsageError
from hotplate.machine import wiring
from hotplate.testbed.segments import Segments
from hotplate.testbed.server import Server
from hotplate.timing.deadline import DeadlineExceeded

pytestmark = [pytest.mark.tool("dnsmasq"), pytest.mark.tool("ip")]

WEB = spec("web", port(5))
BOTH = replace(WEB, ports=(*WEB.ports, port(5, network=1)))


class NotingMachine:
    """Records plugging and unplugging; ``refusal`` is raised instead.

    Its guest ignores the first ``deaf`` requests to release an interface.
    """

    def __init__(self, link: wiring.Wiring) -> None:
        self.wiring = link
        self.calls: list[object] = []
        self.refusal: Exception | None = None
        self.deaf = 0

    def attach(self, cable: wiring.Cable) -> None:
        self._note(cable.mac)

    def detach(self, place: int, deadline: object) -> None:
        del deadline
        if self.deaf:
            self.deaf -= 1
            raise DeadlineExceeded("the guest does not hear it")
        self._note(place)

    def _note(self, call: object) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(call)


class Services:
    """Guest services that serve no guest."""

    def serve(self, *_: object, **__: object) -> contextlib.AbstractContextManager[object]:
        return ExitStack()


SERVICES: Any = Services()


@pytest.fixture
def networks(tmp_path: Path) -> Iterator[Segments]:
    made = Segments(tmp_path, on_loss=lambda error: None)
    yield made
    made.close()


@pytest.fixture
def web(networks: Segments) -> Iterator[Server]:
    with ExitStack() as owned:
        machine: Any = NotingMachine(owned.enter_context(networks.wired(WEB)))
        yield Server(WEB, machine, nonce="", owned=owned)


def is_free(networks: Segments, number: int, network: int) -> bool:
    """Return True when another server can have that address."""
    try:
        with networks.wired(spec("other", port(number, network=network))):
            return True
    except UsageError:
        return False


def test_port_is_plugged_in_and_out(networks: Segments, web: Server) -> None:
    machine: Any = web.machine
    web.replug(BOTH, networks, SERVICES)
    assert web.spec == BOTH
    assert machine.calls == [BOTH.ports[1].mac]
    assert machine.wiring.macs == tuple(each.mac for each in BOTH.ports)
    assert not is_free(networks, 5, 1)

    second = replace(WEB, ports=BOTH.ports[1:])
    web.replug(second, networks, SERVICES)
    assert web.spec == second
    assert machine.calls[1:] == [0]
    assert machine.wiring.macs == (BOTH.ports[1].mac,)
    assert is_free(networks, 5, 0)

    web.replug(replace(WEB, ports=()), networks, SERVICES)
    assert machine.wiring.macs == ()
    with pytest.raises(ConnectionError, match="on no network"):
        machine.wiring.connect(22)
    assert networks._segments == {}


def test_refused_interface_leaves_no_network(networks: Segments, web: Server) -> None:
    machine: Any = web.machine
    machine.refusal = UsageError("no")
    with pytest.raises(UsageError):
        web.replug(BOTH, networks, SERVICES)
    assert web.spec == WEB
    assert is_free(networks, 5, 1)
    assert len(networks._segments) == 1


def test_port_with_a_taken_address_is_refused(networks: Segments, web: Server) -> None:
    machine: Any = web.machine
    with (
        networks.wired(spec("db", port(5, network=1))),
        pytest.raises(UsageError, match="is taken"),
    ):
        web.replug(BOTH, networks, SERVICES)
    assert (web.spec, machine.calls) == (WEB, [])


def test_interface_that_the_guest_keeps_stays(networks: Segments, web: Server) -> None:
    machine: Any = web.machine
    machine.refusal = DeadlineExceeded("the guest keeps it")
    with pytest.raises(DeadlineExceeded):
        web.replug(replace(WEB, ports=()), networks, SERVICES)
    assert web.spec == WEB
    assert not is_free(networks, 5, 0)


def test_guest_that_still_boots_is_asked_again(networks: Segments, web: Server) -> None:
    """Nova: ``[libvirt] device_detach_attempts`` is 8, of ``device_detach_timeout`` 20 s each."""
    machine: Any = web.machine
    machine.deaf = 8
    with pytest.raises(DeadlineExceeded):
        web.replug(replace(WEB, ports=()), networks, SERVICES)
    assert (web.spec, machine.calls) == (WEB, [])
    machine.deaf = 7
    web.replug(replace(WEB, ports=()), networks, SERVICES)
    assert (web.spec.ports, machine.calls) == ((), [0])


def test_isolated_server_keeps_its_interface(networks: Segments) -> None:
    with wiring.choose([80]) as link:
        machine: Any = NotingMachine(link)
        server = Server(WEB, machine, nonce="", owned=ExitStack())
        for segments in (None, networks):
            with pytest.raises(UsageError, match='"web" is by itself'):
                server.replug(BOTH, segments, SERVICES)
