"""A router (router.py, forwarder.py) between real segments, with programs on their ports."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from stations import Answerer, Station, mac, subnet, until_refused

from hotplate.errors import HostError, MachineLostError, UsageError
from hotplate.network.router import Router
from hotplate.network.segment import Segment
from hotplate.timing.deadline import Deadline, retry

pytestmark = [pytest.mark.tool("dnsmasq"), pytest.mark.tool("ip"), pytest.mark.tool("busybox")]


class Lab:
    """Two segments, a router between them and a machine on each: 10.0.0.5 and 10.0.1.5."""

    def __init__(self, segments: list[Segment], router: Router, stations: list[Station]) -> None:
        self.segments = segments
        self.router = router
        self.stations = stations
        self.ports = [next(iter(each.ports.values())) for each in segments]

    def attach(self, number: int) -> int:
        address = IPv4Address(f"10.0.{number}.1")
        return self.router.attach(self.segments[number], mac=mac(1, number), address=address)


@pytest.fixture
def lab(tmp_path: Path, station) -> Iterator[Lab]:
    segments, stations = [], []
    with Router("gateway", directory=tmp_path / "router") as router:
        for number in (0, 1):
            gateway = IPv4Address(f"10.0.{number}.1")
            segments.append(
                Segment(
                    f"net{number}",
                    subnet(number, gateway=gateway),
                    directory=tmp_path / str(number),
                    services=(80,),
                )
            )
        with segments[0], segments[1]:
            for number, segment in enumerate(segments):
                own, gateway = (IPv4Address(f"10.0.{number}.{each}") for each in (5, 1))
                there = station(segment.port(mac=mac(5, number), addresses=[own]))
                there.configure(str(own), f"ip route add default via {gateway}")
                stations.append(there)
            made = Lab(segments, router, stations)
            made.attach(0)
            made.attach(1)
            yield made


def messages(station: Station) -> int:
    """Return how many ICMP messages have arrived at a station."""
    return int(station.run("busybox awk '/^Icmp: [0-9]/ {print $2}' /proc/net/snmp")[1])


def test_packets_pass_between_the_segments_and_the_gateways_answer(lab: Lab) -> None:
    one, two = lab.stations
    assert one.pings("10.0.1.5")
    assert two.pings("10.0.0.5")
    for address in ("10.0.0.1", "10.0.1.1"):
        assert one.pings(address)
    # One hop, and whole packets of Ethernet's size.
    assert not one.pings("10.0.1.5", tries=1, options="-t 1")
    assert one.pings("10.0.1.5", options="-t 2 -s 1472")
    # The metadata service still identifies each machine by its own link.
    answerers = [Answerer(port, port.segment.name) for port in lab.ports]
    assert [each.ask("169.254.169.254") for each in lab.stations] == ["net0", "net1"]
    assert [each.senders for each in answerers] == [["10.0.0.5"], ["10.0.1.5"]]


def test_server_beyond_the_router_is_reached(lab: Lab) -> None:
    one, two = lab.stations
    two.serve(2300, "echo beyond | busybox nc -l -p 2300")
    assert one.ask("10.0.1.5", 2300) == "beyond"


def test_interfaces_are_detached_and_attached_again(lab: Lab) -> None:
    one = lab.stations[0]
    lab.router.detach(2)
    lab.router.detach(2)
    assert not one.pings("10.0.1.5", tries=1)
    assert one.pings("10.0.0.1")
    lab.attach(1)
    assert one.pings("10.0.1.5")


def test_spoofed_sender_does_not_cross_the_router(lab: Lab) -> None:
    """Neither addresses of the far or near segment nor the router's can be spoofed."""
    one, two = lab.stations
    assert one.pings("10.0.1.5")
    seen = messages(two)
    for sender in ("10.0.1.6", "10.0.0.6", "10.0.1.1", "192.0.2.1"):
        one.run(f"ip address add {sender}/32 dev eth0")
        assert not one.pings("10.0.1.5", tries=1, options=f"-I {sender}")
        one.run(f"ip address del {sender}/32 dev eth0")
    assert until_refused(lab.ports[0], "address", more_than=3)
    assert messages(two) == seen
    # The services of a segment answer its own machines only.
    assert not one.pings("10.0.1.2", tries=1)


def test_packets_to_elsewhere_are_refused_at_once(lab: Lab) -> None:
    """Each of them: a kernel says so five times at once, and then once a second."""
    one = lab.stations[0]

    def refusals(address: str, *, asked: int = 40, seconds: int = 20) -> int:
        asks = f"for each in $(busybox seq {asked}); do busybox nc {address} 53 </dev/null; done"
        return one.run(f"timeout {seconds} sh -c '{asks}'")[1].count("unreachable")

    assert refusals("192.0.2.1") == 40
    # A machine of its networks is asked, and so is a next hop.
    lab.router.set_routes([(IPv4Network("192.0.2.0/24"), IPv4Address("10.0.1.5"))])
    for address in ("10.0.1.5", "192.0.2.1"):
        assert refusals(address, asked=1, seconds=1) == 0
    lab.router.set_routes([])
    assert refusals("192.0.2.1") == 40
    lab.router.detach(2)
    assert refusals("10.0.1.5") == 40


def test_router_has_no_way_out(lab: Lab) -> None:
    one = lab.stations[0]
    with (
        socket.create_server(("", 0)) as bystander,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
    ):
        # Find the address that the host would send from; no packet is sent.
        probe.connect(("192.0.2.1", 9))
        port = bystander.getsockname()[1]
        one.run("ip route del 169.254.169.254; ip route add 127.0.0.0/8 via 10.0.0.1")
        for address in (probe.getsockname()[0], "10.0.0.1", "169.254.169.254", "192.0.2.1"):
            assert one.ask(address, port, seconds=1) == ""


def test_routes_beyond_the_segments(lab: Lab) -> None:
    one, two = lab.stations
    far, by = IPv4Network("10.9.0.0/24"), IPv4Address("10.0.1.5")
    two.run("ip address add 10.9.0.9/32 dev lo; ip link set lo up")
    seen = messages(two)
    lab.router.set_routes([(far, by)])
    one.pings("10.9.0.9", tries=1)
    retry(lambda _: messages(two) == seen + 1, Deadline(60, "the message"))
    lab.router.set_routes([])
    one.pings("10.9.0.9", tries=1)
    assert messages(two) == seen + 1
    with pytest.raises(HostError, match='the router "gateway" cannot do "routes"'):
        lab.router.set_routes([(far, IPv4Address("10.7.0.1"))])


def test_taken_or_foreign_address_is_refused(lab: Lab) -> None:
    for address, sentence in (
        ("10.0.0.5", "is taken"),
        ("10.0.0.2", "is taken"),
        ("10.0.1.9", "is not one of 10.0.0.0/24"),
    ):
        with pytest.raises(UsageError, match=sentence):
            lab.router.attach(lab.segments[0], mac=mac(9), address=IPv4Address(address))
    with pytest.raises(UsageError, match=r'"10\.0\.0\.1" is taken'):
        lab.segments[0].port(mac=mac(9), addresses=[IPv4Address("10.0.0.1")])


def test_killed_router_leaves_its_segments_working(lab: Lab) -> None:
    helper = lab.router._keeper._process
    assert helper is not None
    helper.send_signal(signal.SIGKILL)
    helper.wait(60)
    with pytest.raises(MachineLostError):
        lab.router.attach(lab.segments[0], mac=mac(9), address=IPv4Address("10.0.0.9"))
    lab.router.detach(1)
    assert [len(each.ports) for each in lab.segments] == [1, 2]
    lab.router.close()
    assert [len(each.ports) for each in lab.segments] == [1, 1]
    Answerer(lab.ports[0], "harness")
    assert lab.stations[0].ask("169.254.169.254") == "harness"


def test_router_connects_two_subnets_of_one_segment(tmp_path, station) -> None:
    gateways = [IPv4Address(f"10.0.{number}.1") for number in (0, 1)]
    first, second = (subnet(number, gateway=gateways[number]) for number in (0, 1))
    with (
        Router("gateway", directory=tmp_path / "router") as router,
        Segment("net", first, directory=tmp_path) as segment,
    ):
        segment.add_subnet(second)
        there = []
        for number, gateway in enumerate(gateways):
            own = IPv4Address(f"10.0.{number}.5")
            there.append(station(segment.port(mac=mac(5, number), addresses=[own])))
            there[-1].configure(str(own), f"ip route add default via {gateway}")
        router.attach(segment, mac=mac(1), address=gateways[0])
        assert not there[0].pings("10.0.1.5", tries=1)
        router.attach(segment, mac=mac(1, 1), address=gateways[1])
        assert there[0].pings("10.0.1.5")
        assert there[1].pings("10.0.0.5")
        # The router does not help to spoof the other's address either.
        there[0].run("ip address add 10.0.1.5/32 dev eth0")
        assert not there[0].pings("10.0.1.1", tries=1, options="-I 10.0.1.5")
