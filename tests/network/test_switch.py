"""The switch alone: frames in, frames out, on sockets of this process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import IPv4Address

import pytest

from hotplate.network import frames, switch
from hotplate.network.switch import BURST, Outlet, Switch

SERVICES = bytes.fromhex("020000000001")
EVERYBODY = b"\xff" * 6


class Wired:
    """A port and the sockets at its two ends."""

    def __init__(self, number: int) -> None:
        ours, self.machine = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        host, self.services = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.address = IPv4Address(f"10.0.0.{number}")
        self.mac = bytes.fromhex(f"fa163e0000{number:02x}")
        owned = frozenset({self.address.packed})
        self.outlet = Outlet(number, self.mac, owned, host, guest=ours)
        for end in (self.machine, self.services):
            end.setblocking(False)

    def frame(self, to: bytes, payload: bytes = b"x") -> bytes:
        return frames.datagram(
            payload,
            macs=(self.mac, to),
            addresses=(self.address, IPv4Address("10.0.0.99")),
            ports=(1, 2),
        )

    def got(self) -> tuple[list[bytes], list[bytes]]:
        """Return the frames that arrived at the machine and at the services."""
        return _all(self.machine), _all(self.services)

    def close(self) -> None:
        for end in (self.machine, self.services, self.outlet.host, self.outlet.guest):
            if end is not None:
                end.close()


def _all(end: socket.socket) -> list[bytes]:
    seen = []
    while True:
        try:
            seen.append(end.recv(4096))
        except BlockingIOError:
            return seen


class Lab:
    """A switch with three ports and a clock that stands still."""

    def __init__(self) -> None:
        self.now = 100.0
        self.switch = Switch(SERVICES, clock=lambda: self.now)
        self.ports = {number: Wired(number) for number in (1, 2, 3)}
        self.switch.outlets = {number: port.outlet for number, port in self.ports.items()}

    def send(self, number: int, frame: bytes) -> None:
        self.ports[number].machine.send(frame)
        self.switch.from_guest(self.ports[number].outlet)

    def got(self) -> dict[str, list[bytes]]:
        """Return the frames by receiver, without receivers of none."""
        seen = {}
        for number, port in self.ports.items():
            machine, services = port.got()
            seen |= {f"machine {number}": machine, f"services {number}": services}
        return {who: what for who, what in seen.items() if what}


@pytest.fixture
def lab() -> Iterator[Lab]:
    made = Lab()
    yield made
    for port in made.ports.values():
        port.close()


def test_frame_goes_only_to_its_receiver(lab: Lab) -> None:
    frame = lab.ports[1].frame(lab.ports[2].mac)
    lab.send(1, frame)
    assert lab.got() == {"machine 2": [frame]}


def test_services_are_reached_on_the_senders_own_link(lab: Lab) -> None:
    frame = lab.ports[1].frame(SERVICES)
    lab.send(1, frame)
    assert lab.got() == {"services 1": [frame]}


def test_broadcast_reaches_all_ports_except_the_sender(lab: Lab) -> None:
    frame = lab.ports[1].frame(EVERYBODY)
    lab.send(1, frame)
    assert lab.got() == {who: [frame] for who in ("services 1", "machine 2", "machine 3")}


def test_frame_for_an_unknown_address_is_dropped(lab: Lab) -> None:
    lab.send(1, lab.ports[1].frame(bytes.fromhex("fa163e000009")))
    assert lab.got() == {}


def test_frame_of_the_services_goes_to_that_port_only(lab: Lab) -> None:
    lab.ports[2].services.send(lab.ports[1].frame(EVERYBODY))
    lab.switch.from_host(lab.ports[2].outlet)
    assert list(lab.got()) == ["machine 2"]


def test_refused_frame_is_counted_and_dropped(lab: Lab) -> None:
    lab.send(1, lab.ports[2].frame(EVERYBODY))
    assert lab.got() == {}
    assert lab.ports[1].outlet.counts == {"refused: mac": 1}


def test_parted_ports_do_not_reach_each_other(lab: Lab) -> None:
    lab.ports[1].outlet.parted = {2}
    frame = lab.ports[1].frame(EVERYBODY)
    lab.send(1, frame)
    assert lab.got() == {"services 1": [frame], "machine 3": [frame]}


def test_frame_is_delayed_by_every_slow_link_on_its_way(lab: Lab) -> None:
    lab.ports[1].outlet.delay, lab.ports[2].outlet.delay = 1.0, 0.5
    frame = lab.ports[1].frame(lab.ports[2].mac)
    lab.send(1, frame)
    assert lab.switch.seconds() == 1.5
    lab.now += 1.4
    lab.switch.deliver_due()
    assert lab.got() == {}
    lab.now += 0.2
    lab.switch.deliver_due()
    assert lab.got() == {"machine 2": [frame]}
    assert lab.switch.seconds() is None


def test_frames_on_a_slow_link_keep_their_order(lab: Lab) -> None:
    lab.ports[2].outlet.delay = 1.0
    sent = [lab.ports[1].frame(lab.ports[2].mac, bytes([n])) for n in range(5)]
    for frame in sent:
        lab.send(1, frame)
    lab.now += 2
    lab.switch.deliver_due()
    assert lab.got() == {"machine 2": sent}


def test_slow_link_holds_a_limited_number_of_frames(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(switch, "MAX_DELAYED", 2)
    lab.ports[2].outlet.delay = 1.0
    for _ in range(3):
        lab.send(1, lab.ports[1].frame(lab.ports[2].mac))
    assert lab.ports[2].outlet.counts["dropped"] == 1


def test_lossy_link_drops_its_share_of_frames(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = iter([0.1, 0.3, 0.2, 0.4])
    monkeypatch.setattr(switch.random, "random", lambda: next(draws))
    lab.ports[2].outlet.loss = 0.25
    for _ in range(4):
        lab.send(1, lab.ports[1].frame(lab.ports[2].mac))
    assert len(lab.got()["machine 2"]) == 2
    assert lab.ports[2].outlet.counts["lost"] == 2


def test_unplugged_or_full_machine_does_not_block_others(lab: Lab) -> None:
    frame = lab.ports[1].frame(EVERYBODY)
    lab.ports[3].machine.close()
    lab.ports[3].machine = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]
    lab.ports[3].machine.setblocking(False)
    for _ in range(2000):
        lab.send(1, frame)
        lab.ports[1].got()
    assert lab.ports[2].outlet.counts["dropped"] > 0
    assert lab.ports[3].outlet.counts["dropped"] == 2000
    lab.ports[2].got()
    lab.send(1, frame)
    assert lab.ports[2].got()[0] == [frame]


def test_flooding_port_does_not_block_others(lab: Lab) -> None:
    lab.ports[1].machine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    sent = 0
    try:
        for sent in range(BURST * 2):  # noqa: B007
            lab.ports[1].machine.send(lab.ports[1].frame(lab.ports[2].mac))
    except BlockingIOError:
        pass
    lab.switch.from_guest(lab.ports[1].outlet)
    assert lab.ports[1].outlet.counts["sent"] == min(sent, BURST)
