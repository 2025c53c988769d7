"""Tiny guests on segments, end to end through QEMU.

Three are booted once for all of these tests: ``web`` and ``db`` are on the network ``private``,
``db`` and ``log`` on ``backend``. Tests that need no guest are in test_segment.py.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

import pytest
import tiny_guest
from stations import Answerer, mac, subnet

from hotplate.events.log import EventLog
from hotplate.guest.shell import Shell
from hotplate.machine import accelerator
from hotplate.machine.config import MachineConfig
from hotplate.machine.machine import Machine
from hotplate.machine.wiring import Cables
from hotplate.network.segment import Port, Segment
from hotplate.timing.deadline import Deadline

pytestmark = [
    pytest.mark.boots,
    pytest.mark.network,
    pytest.mark.tool("qemu-system-x86_64"),
    pytest.mark.tool("dnsmasq"),
]
BOOT_SECONDS = 150


class Guest:
    """A tiny guest on some ports."""

    def __init__(self, name: str, ports: list[Port], directory: Path) -> None:
        tiny = tiny_guest.make()
        self.ports = ports
        self.answerer = Answerer(ports[0], name)
        self.wiring = Cables(ports)
        config = MachineConfig(
            name=name,
            uuid=str(uuid.uuid4()),
            kernel=tiny.kernel,
            initrd=tiny.initrd,
            append=tiny.append,
            memory_mib=192,
            cpus=1,
        )
        self.machine = Machine(
            config,
            wiring=self.wiring,
            accelerator=accelerator.emulation("the tests shall run everywhere", arch="x86_64"),
            directory=directory / name,
            events=EventLog(),
            server_id=name,
        )
        self.shell: Shell

    def __enter__(self) -> Guest:
        self.wiring.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.machine.kill()
        self.wiring.close()

    def attach(self) -> None:
        self.shell = Shell(self.machine.shell_channel, nonce=tiny_guest.NONCE)
        self.shell.attach(Deadline(BOOT_SECONDS, "the tiny guest's shell"))

    def run(self, command: str) -> str:
        return self.shell.run(command).text

    def pings(self, target: str) -> bool:
        return " 0 packets received" not in self.run(f"ping -c 5 -W 5 {target}")

    def ask(self, address: str = "169.254.169.254", port: int = 80) -> str:
        return self.run(f"echo ask | timeout 10 nc {address} {port}")


@pytest.fixture(scope="module")
def guests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Guest]]:
    directory = tmp_path_factory.mktemp("segments")
    with contextlib.ExitStack() as stack:
        private = stack.enter_context(Segment("private", subnet(0), directory=directory / "0"))
        backend = stack.enter_context(Segment("backend", subnet(1), directory=directory / "1"))

        def port(segment: Segment, network: int, number: int, name: str) -> Port:
            address = IPv4Address(f"10.0.{network}.{number}")
            return segment.port(mac=mac(number, network), addresses=[address], names=[name])

        ports = {
            "web": [port(private, 0, 5, "web")],
            "db": [port(private, 0, 6, "db"), port(backend, 1, 6, "db")],
            "log": [port(backend, 1, 7, "log")],
        }
        made = {
            name: stack.enter_context(Guest(name, theirs, directory))
            for name, theirs in ports.items()
        }
        for guest in made.values():
            guest.machine.start()
        for guest in made.values():
            guest.attach()
        yield made


def test_guests_get_addresses_and_names_by_dhcp(guests: dict[str, Guest]) -> None:
    shown = {name: guest.run("hostname; ip -4 -o address") for name, guest in guests.items()}
    for name, address in (("web", "10.0.0.5/24"), ("log", "10.0.1.7/24")):
        assert shown[name].startswith(f"{name}\n")
        assert address in shown[name]
    assert {"10.0.0.6/24", "10.0.1.6/24"} <= {*shown["db"].split()}


def test_guests_reach_each_other_by_address_and_by_name(guests: dict[str, Guest]) -> None:
    web, db, log = guests.values()
    assert web.pings("10.0.0.6")
    assert web.pings("db")
    assert log.pings("db.novalocal")
    assert db.pings("10.0.0.5")
    assert db.pings("10.0.1.7")


def test_metadata_service_identifies_the_guest(guests: dict[str, Guest]) -> None:
    assert {name: guest.ask() for name, guest in guests.items()} == {name: name for name in guests}


def test_guest_does_not_reach_other_segments(guests: dict[str, Guest]) -> None:
    web = guests["web"]
    web.run("ip route add 10.0.1.0/24 via 10.0.0.2; ip route add default via 10.0.0.6")
    for target in ("10.0.1.7", "10.0.1.6", "10.0.1.2", "192.0.2.1"):
        assert "0 packets received" in web.run(f"ping -c 1 -W 1 {target}")
    web.run("ip route del 10.0.1.0/24; ip route del default")


def test_guest_with_a_spoofed_address_reaches_no_metadata(guests: dict[str, Guest]) -> None:
    web, db = guests["web"], guests["db"]
    seen = len(web.answerer.senders)
    db.run(
        f"ip link set eth0 down; ip link set eth0 address {mac(5)}; ip link set eth0 up; "
        "ip address flush dev eth0; ip address add 10.0.0.5/24 dev eth0; "
        "ip link set eth1 down; ip route add 169.254.169.254 via 10.0.0.2"
    )
    try:
        assert db.run("echo ask | timeout 2 nc 169.254.169.254 80") == ""
        assert len(web.answerer.senders) == seen
        assert db.ports[0].counts()["refused: mac"] > 0
        assert web.ask() == "web"
    finally:
        db.run(
            f"ip link set eth0 down; ip link set eth0 address {mac(6)}; ip link set eth0 up; "
            "ip address flush dev eth0; ip address add 10.0.0.6/24 dev eth0; ip link set eth1 up; "
            "ip route add 169.254.169.254 via 10.0.0.2"
        )
    assert db.ask() == "db"


def test_harness_connects_to_a_guest(guests: dict[str, Guest]) -> None:
    web = guests["web"]
    web.run("(while :; do echo from the guest | nc -l -p 2200; done) >/dev/null 2>&1 &")
    web.run("sleep 1")
    with web.wiring.connect(2200, seconds=20) as connection:
        connection.settimeout(20)
        assert connection.recv(100) == b"from the guest\n"


def test_saved_guest_is_on_its_network_again(guests: dict[str, Guest], tmp_path: Path) -> None:
    """It gets a new cable, and nothing has to be learned."""
    web, db = guests["web"], guests["db"]
    state = tmp_path / "state"
    web.machine.save_state(state)
    web.machine.kill()
    web.machine.start(incoming=state)
    web.attach()
    assert db.pings("10.0.0.5")
    assert web.pings("db")
    assert web.ask() == "web"


def test_crashed_guest_does_not_affect_the_others(guests: dict[str, Guest]) -> None:
    web, db, log = guests.values()
    log.machine.kill()
    assert web.pings("10.0.0.6")
    assert "0 packets received" in db.run("ping -c 1 -W 1 10.0.1.7")
