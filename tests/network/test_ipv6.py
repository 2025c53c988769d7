"""IPv6 on a segment and over a router: real kernels on the ports, dnsmasq behind them."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from pathlib import Path

import pytest
from stations import Answerer, Station, mac, until_refused

from hotplate.errors import UsageError
from hotplate.network import dhcp, frames
from hotplate.network.dhcp import Address, Lease, Subnet
from hotplate.network.frames import refusal
from hotplate.network.router import Router
from hotplate.network.segment import Port, Segment
from hotplate.timing.deadline import Deadline, retry

pytestmark = [pytest.mark.tool("dnsmasq"), pytest.mark.tool("ip"), pytest.mark.tool("busybox")]

METADATA = "fe80::a9fe:a9fe%eth0"
MAC = bytes.fromhex("fa163e000005")
OWN = IPv6Address("fd00::5").packed
LINK = IPv6Address("fe80::f816:3eff:fe00:5").packed
OTHER = IPv6Address("fd00::6").packed
NOBODY = bytes(16)
OWNED = frozenset({OWN, LINK})


def subnet6(number: int = 0, mode: str = "", **options: object) -> Subnet:
    network = IPv6Network(f"fd00:{number}::/64")
    return Subnet(network, network[2], gateway=network[1], ipv6_mode=mode, **options)  # type: ignore[arg-type]


def eui64(port: int, number: int) -> IPv6Address:
    return IPv6Address(f"fd00:{number}::f816:3eff:fe00:{number * 256 + port:x}")


# -- frames --------------------


def packet(protocol: int, message: bytes, sender: bytes = OWN) -> bytes:
    header = struct.pack("!IHBB", 6 << 28, len(message), protocol, 64) + sender + OTHER
    return b"\x33\x33" + bytes(4) + MAC + frames.IPV6 + header + message


def icmp(kind: int, target: bytes = b"") -> bytes:
    return bytes([kind, 0, 0, 0]) + bytes(4) + target


def udp(source: int) -> bytes:
    return struct.pack("!4H", source, 547, 8, 0)


#: A hop-by-hop header before ICMPv6, as of multicast listener reports, and one of a fragment.
HOPS = bytes([58, 0, 5, 2, 0, 0, 1, 0])


def fragment(protocol: int, offset: int) -> bytes:
    return struct.pack("!BBHI", protocol, 0, offset << 3 | 1, 7)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (packet(17, udp(546)), ""),
        (packet(6, bytes(20), LINK), ""),
        (packet(6, bytes(20), OTHER), "address"),
        (packet(6, bytes(20), NOBODY), "address"),
        (packet(17, udp(547)), "dhcp"),
        (packet(60, bytes([17, 0]) + bytes(6) + udp(547)), "dhcp"),
        (packet(44, fragment(17, 0) + udp(547)), "dhcp"),
        (packet(44, fragment(17, 9) + udp(547)), ""),
        (packet(44, fragment(17, 9) + udp(1), OTHER), "address"),
        (packet(44, fragment(17, 0)), "protocol"),
        (packet(0, HOPS[:6]), "protocol"),
        (packet(58, icmp(128)), ""),
        (packet(58, icmp(134)), "router"),
        (packet(0, HOPS + icmp(134), LINK), "router"),
        (packet(58, icmp(137)), "router"),
        (packet(58, icmp(136, OWN)), ""),
        (packet(58, icmp(136, OTHER)), "address"),
        (packet(58, icmp(136, OTHER[:8])), "address"),
        (packet(58, icmp(135, OWN), NOBODY), ""),
        (packet(0, HOPS + icmp(143), NOBODY), ""),
        (packet(58, icmp(128), NOBODY), "address"),
        (packet(6, bytes(20))[:53], "protocol"),
        (packet(6, bytes(20))[:14] + b"\x45" + packet(6, bytes(20))[15:], "protocol"),
    ],
)
def test_only_frames_with_the_ports_own_addresses_pass(frame: bytes, reason: str) -> None:
    assert refusal(frame, MAC, OWNED) == reason


def test_port_without_an_ipv6_address_may_not_use_ipv6() -> None:
    owned = frozenset({IPv4Address("10.0.0.5").packed})
    assert refusal(packet(6, bytes(20), LINK), MAC, owned) == "protocol"


def test_router_sends_advertisements_and_packets_from_beyond() -> None:
    beyond = frames.OutsideNetwork(IPv6Network("fd00::/64"))
    far = IPv6Address("fd00:1::5").packed
    assert refusal(packet(58, icmp(134), LINK), MAC, OWNED, routed=beyond) == ""
    assert refusal(packet(6, bytes(20), far), MAC, OWNED, routed=beyond) == ""
    assert refusal(packet(6, bytes(20), OTHER), MAC, OWNED, routed=beyond) == "address"
    assert refusal(packet(6, bytes(20), NOBODY), MAC, OWNED, routed=beyond) == "address"
    assert refusal(packet(17, udp(547), LINK), MAC, OWNED, routed=beyond) == "dhcp"


def test_link_local_address_belongs_to_the_mac_address() -> None:
    assert frames.link_local(MAC) == LINK


# -- dnsmasq's options --------------------


def test_slaac_subnet_has_no_dhcp_on_the_segment() -> None:
    files = {"interfaces": "h*", "hosts": "/hosts", "names": "/names"}
    options = dhcp.command("dnsmasq", [subnet6(0, "slaac")], **files)
    assert not [each for each in options if each.startswith("--dhcp")]


def test_port_gets_one_address_of_each_version() -> None:
    addresses = tuple(IPv6Address(each) for each in ("fd00::5", "fd00::6"))
    lease = Lease("fa:16:3e:00:00:05", (IPv4Address("10.0.0.5"), *addresses), ("web",))
    assert dhcp.hosts([lease]) == "fa:16:3e:00:00:05,10.0.0.5,[fd00::5],web\n"
    assert "fd00::5 web.novalocal web\n" in dhcp.names([lease], "novalocal")


# -- a segment --------------------


@pytest.fixture
def segment6(tmp_path: Path) -> Iterator[Segment]:
    """A segment with fd00::/64 alone, whose addresses DHCPv6 hands out."""
    alone = subnet6(0, "dhcpv6-stateful")
    with Segment("six", alone, directory=tmp_path / "six", services=(80, 8000)) as made:
        yield made


def port6(segment: Segment, number: int, *names: str) -> Port:
    return segment.port(mac=mac(number), addresses=[IPv6Address(f"fd00::{number}")], names=names)


def set_up(station: Station, address: str, *commands: str) -> None:
    lines = [f"ip address add {address}/64 dev eth0 nodad", *commands]
    status, text = station.run(" && ".join(lines))
    assert status == 0, text


def pings6(station: Station, address: str, *, tries: int = 5, options: str = "") -> bool:
    return station.pings(address, tries=tries, options=f"-6 {options}")


def answers(port: Port, *, number: int = 1, seconds: float = 60) -> set[Address]:
    """Return the addresses that a machine answers for, as soon as there are that many."""
    port.ask()
    answered: set[Address] = set()
    deadline = Deadline(seconds, "the answers")
    while len(answered) < number and not deadline.passed:
        time.sleep(0.1)
        answered |= port.ask()
    return answered


def test_ports_reach_each_other_and_answer_for_their_own_addresses(
    segment6: Segment, station: Callable[..., Station]
) -> None:
    ports = [port6(segment6, number) for number in (5, 6)]
    one, two = (station(port) for port in ports)
    for port in ports:
        assert port.ask() == set()
    set_up(one, "fd00::5")
    set_up(two, "fd00::6")
    assert pings6(one, "fd00::6")
    assert pings6(two, "fd00::5")
    # The services' link-local and global addresses.
    assert pings6(one, METADATA)
    assert pings6(one, "fd00::2")
    assert answers(ports[0]) == {IPv6Address("fd00::5")}
    assert one.run("ip address del fd00::5/64 dev eth0")[0] == 0
    # An answer of before may come late.
    retry(lambda _: answers(ports[0], seconds=1) == set(), Deadline(60, "silence"))


def test_metadata_address_identifies_each_machine(
    segment6: Segment, station: Callable[..., Station]
) -> None:
    ports = [port6(segment6, number) for number in (5, 6)]
    stations = [station(port) for port in ports]
    answerers = [Answerer(port, str(port.number)) for port in ports]
    assert [each.ask(METADATA) for each in stations] == [str(each.number) for each in ports]
    assert [len(each.senders) for each in answerers] == [1, 1]
    # The other services are Heat's, whose URLs are IPv4.
    assert stations[0].ask(METADATA, 8000) == ""


def test_foreign_address_is_not_carried(segment6: Segment, station: Callable[..., Station]) -> None:
    port, other = port6(segment6, 5), port6(segment6, 6)
    one, two = station(port), station(other)
    set_up(one, "fd00::7")
    set_up(two, "fd00::6")
    assert not pings6(one, "fd00::6", tries=1, options="-I fd00::7")
    assert until_refused(port, "address")


def test_harness_connects_over_ipv6(segment6: Segment, station: Callable[..., Station]) -> None:
    port = port6(segment6, 5)
    there = station(port)
    set_up(there, "fd00::5")
    there.serve(99, "busybox nc -l -p 99 -e echo hello")
    with port.connect(99) as connection:
        assert connection.recv(9) == b"hello\n"


#: Asks for an address by DHCPv6 with an identity, and prints the answer (RFC 8415: Solicit with the
#: client's identity, an association for addresses, and Rapid Commit).
SOLICIT = """
import socket, struct, sys
number = int(sys.argv[1])
option = lambda kind, data: struct.pack("!HH", kind, len(data)) + data
duid = struct.pack("!HHI", 2, 9, number)
message = bytes([1, 0, 0, number]) + option(1, duid) + option(14, b"") + option(8, bytes(2))
message += option(3, struct.pack("!III", number, 0, 0))
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as client:
    scope = socket.if_nametoindex("eth0")
    client.bind(("::", 546))
    client.settimeout(2)
    # As a client does: dnsmasq may just be starting.
    for _ in range(30):
        client.sendto(message, ("ff02::1:2", 547, 0, scope))
        try:
            print(client.recv(1000).hex())
            break
        except TimeoutError:
            pass
    else:
        sys.exit("no answer")
"""


def solicit(station: Station, identity: int) -> bytes:
    status, text = station.run(f"python3 -c '{SOLICIT}' {identity}")
    assert status == 0, text
    return bytes.fromhex(text)


def until_offered(station: Station, identity: int) -> bytes:
    """Return the answer with the port's address: dnsmasq reads its file asynchronously."""

    def offer(last: bool) -> bytes:
        answer = solicit(station, identity)
        assert not last or OWN in answer, answer.hex()
        return answer if OWN in answer else b""

    return retry(offer, Deadline(60, "the address"))


def test_dhcpv6_hands_out_the_ports_address(
    segment6: Segment, station: Callable[..., Station]
) -> None:
    port = port6(segment6, 5, "web")
    there = station(port)
    answer = until_offered(there, 1)
    # A Reply, with the address and the services' as name server.
    assert answer[0] == 7
    assert IPv6Address("fd00::2").packed in answer
    # dnsmasq keeps it for that identity, until another machine is on the port.
    assert OWN not in solicit(there, 2)
    there.close()
    until_offered(station(port), 2)


def test_addresses_of_both_versions_are_on_one_port(
    segment: Segment, station: Callable[..., Station]
) -> None:
    segment.add_subnet(subnet6(0, "slaac"))
    both = [IPv4Address("10.0.0.5"), IPv6Address("fd00::5")]
    port = segment.port(mac=mac(5), addresses=both)
    old = segment.port(mac=mac(6), addresses=[IPv4Address("10.0.0.6")])
    one, two = station(port), station(old)
    set_up(one, "fd00::5")
    one.run("ip address add 10.0.0.5/24 dev eth0")
    two.configure("10.0.0.6")
    assert one.pings("10.0.0.6")
    assert pings6(one, METADATA)
    assert answers(port, number=2) == {*both}
    assert old.ipv6_listeners == {}


@pytest.mark.parametrize(
    ("cidr", "sentence"),
    [
        ("fe80::/64", "cannot have the addresses"),
        ("ff02::/64", "cannot have the addresses"),
        ("fd00::/127", "has no room for machines"),
    ],
)
def test_impossible_ipv6_network_is_refused(tmp_path: Path, cidr: str, sentence: str) -> None:
    network = IPv6Network(cidr)
    with pytest.raises(UsageError, match=sentence):
        Segment("six", Subnet(network, network[1]), directory=tmp_path)


# -- a router --------------------


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    with Router("gateway", directory=tmp_path / "router") as made:
        yield made


#: Solicits a router, for so many seconds, and prints its advertisement (RFC 4861), without the
#: checksum.
ADVERTISEMENT = """
import socket, sys, time
kind, message = socket.IPPROTO_ICMPV6, bytes(1)
end = time.monotonic() + float(sys.argv[1])
with socket.socket(socket.AF_INET6, socket.SOCK_RAW, kind) as raw:
    raw.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    raw.settimeout(1)
    while message[0] != 134:
        if time.monotonic() > end:
            sys.exit("no advertisement")
        # As a system does: the router may just be starting.
        raw.sendto(bytes([133] + [0] * 7), ("ff02::2", 0, 0, socket.if_nametoindex("eth0")))
        try:
            while (message := raw.recv(1500))[0] != 134:
                pass
        except TimeoutError:
            pass
print(message.hex())
"""


@dataclass
class Advertisement:
    """A router's advertisement: its flags, and its options by their number."""

    flags: int
    options: dict[int, bytes]

    @classmethod
    def at(cls, station: Station) -> Advertisement:
        status, text = station.run(f"python3 -c '{ADVERTISEMENT}' 60")
        assert status == 0, text
        message = bytes.fromhex(text)
        made, rest = cls(message[5], {}), message[16:]
        while rest:
            # The length is one of eight bytes.
            made.options[rest[0]] = rest[2 : 8 * rest[1]]
            rest = rest[8 * rest[1] :]
        return made


MANAGED, OTHER_SETTINGS, ON_LINK, AUTONOMOUS = 0x80, 0x40, 0x80, 0x40


@pytest.mark.parametrize(
    ("mode", "flags", "of_prefix"),
    [
        ("slaac", 0, ON_LINK | AUTONOMOUS),
        ("dhcpv6-stateless", OTHER_SETTINGS, ON_LINK | AUTONOMOUS),
        ("dhcpv6-stateful", MANAGED | OTHER_SETTINGS, ON_LINK),
    ],
)
def test_router_announces_its_subnets_and_forwards(
    tmp_path: Path,
    router: Router,
    station: Callable[..., Station],
    mode: str,
    flags: int,
    of_prefix: int,
) -> None:
    stations, addresses = [], []
    with ExitStack() as opened:
        for number in (1, 2):
            resolver = IPv6Address(f"fd00:{number}::53")
            wanted = subnet6(number, mode, mtu=1400, name_servers=(resolver,))
            segment = opened.enter_context(
                Segment(f"net{number}", wanted, directory=tmp_path / str(number))
            )
            own = IPv6Address(f"fd00:{number}::5")
            address = own if mode == "dhcpv6-stateful" else eui64(5, number)
            there = station(segment.port(mac=mac(5, number), addresses=[address]))
            router.attach(segment, mac=mac(1, number), address=IPv6Address(f"fd00:{number}::1"))
            stations.append(there)
            addresses.append(str(address))
        for number, there in enumerate(stations, 1):
            seen = Advertisement.at(there)
            assert seen.flags & (MANAGED | OTHER_SETTINGS) == flags
            assert seen.options[3][1] & (ON_LINK | AUTONOMOUS) == of_prefix
            assert seen.options[3][14:] == IPv6Address(f"fd00:{number}::").packed
            assert struct.unpack("!I", seen.options[5][2:])[0] == 1400
            assert IPv6Address(f"fd00:{number}::53").packed in seen.options[25]
            (route,) = json.loads(there.run("ip -6 -j route show default")[1])
            assert route["gateway"] == str(eui64(1, number)).replace(f"fd00:{number}", "fe80")
        for there, address in zip(stations, addresses, strict=True):
            if mode == "dhcpv6-stateful":
                set_up(there, address)
            assert f"{address}/64" in there.run("ip -6 -o address show scope global")[1]
        for there, other in zip(stations, reversed(addresses), strict=True):
            assert pings6(there, other)


def test_detached_router_is_announced_no_longer(
    tmp_path: Path, router: Router, station: Callable[..., Station]
) -> None:
    with Segment("net1", subnet6(1, "slaac"), directory=tmp_path / "1") as segment:
        there = station(segment.port(mac=mac(5, 1), addresses=[eui64(5, 1)]))
        number = router.attach(segment, mac=mac(1, 1), address=IPv6Address("fd00:1::1"))
        assert Advertisement.at(there).options[3]
        router.detach(number)
        # One of before may come late.
        retry(
            lambda _: there.run(f"python3 -c '{ADVERTISEMENT}' 5")[0] != 0,
            Deadline(60, "silence"),
        )


def test_route_to_an_ipv6_network_beyond_is_set_and_removed(
    tmp_path: Path, router: Router, station: Callable[..., Station]
) -> None:
    stations = []
    with ExitStack() as opened:
        for number in (1, 2):
            segment = opened.enter_context(
                Segment(f"net{number}", subnet6(number), directory=tmp_path / str(number))
            )
            own, gateway = (IPv6Address(f"fd00:{number}::{each}") for each in (5, 1))
            there = station(segment.port(mac=mac(5, number), addresses=[own]))
            set_up(there, str(own), f"ip route add default via {gateway}")
            router.attach(segment, mac=mac(1, number), address=gateway)
            stations.append(there)
        one, two = stations
        # The answer has a sender that the port does not own, so the request is counted instead.
        set_up(two, "fd00:9::9")
        heard = "busybox awk '/^Icmp6InEchos/ {print $2}' /proc/net/snmp6"
        router.set_routes([(IPv6Network("fd00:9::/64"), IPv6Address("fd00:2::5"))])
        pings6(one, "fd00:9::9", tries=1)
        retry(lambda _: two.run(heard)[1].strip() == "1", Deadline(60, "the request"))
        router.set_routes([])
        pings6(one, "fd00:9::9", tries=1)
        assert two.run(heard)[1].strip() == "1"
