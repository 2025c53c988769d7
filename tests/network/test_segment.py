"""Segments with real namespaces, a real dnsmasq and programs on the ports; no machine."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from stations import Answerer, Station, mac, refused, subnet, until_refused

import hotplate
from hotplate.errors import HostError, MachineLostError, UsageError
from hotplate.machine.wiring import Alone
from hotplate.network import segment as module
from hotplate.network.dhcp import Subnet
from hotplate.network.router import Router
from hotplate.network.segment import Port, Segment, refusal
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

pytestmark = [pytest.mark.tool("dnsmasq"), pytest.mark.tool("ip"), pytest.mark.tool("busybox")]

LEASE = (
    "printf '#!/bin/sh\\nenv\\n' >/tmp/$$ && chmod +x /tmp/$$ && "
    "busybox udhcpc -q -n -t 60 -T 1 -O search -O staticroutes $NAME -i eth0 -s /tmp/$$; rm /tmp/$$"
)


LOOK_UP = "busybox nslookup -type=a db.novalocal 10.0.0.2"


def looks_up(station: Station, asked: str, wanted: str) -> None:
    """Wait until a look-up shows a word: dnsmasq reads its files asynchronously."""

    def shown(last: bool) -> bool:
        text = station.run(f"busybox nslookup {asked} 10.0.0.2")[1]
        assert not last or wanted in text, text
        return wanted in text

    retry(shown, Deadline(60, "the name"))


def lease(station: Station, *, name: str = "") -> dict[str, str]:
    """Return the variables that the DHCP client passes to its script.

    :param name: the host name that it sends.
    """
    sent = f"-x hostname:{name}" if name else ""
    status, text = station.run(f"NAME='{sent}'; {LEASE}")
    assert status == 0, text
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: value for name, _, value in pairs}


def test_dhcp_hands_out_address_names_and_the_route_to_the_metadata_address(attach, station):
    seen = lease(station(attach(5, "web")))
    wanted = {
        "ip": "10.0.0.5",
        "mask": "24",
        "hostname": "web",
        "domain": "novalocal",
        "search": "novalocal",
        "dns": "10.0.0.2",
        "staticroutes": "169.254.169.254/32 10.0.0.2",
    }
    assert {name: seen.get(name) for name in wanted} == wanted
    assert "router" not in seen


def test_name_that_a_guest_sends_is_not_answered_for(attach, station):
    """As with Neutron, whose names are those of ports."""
    guest = station(attach(5))
    assert "hostname" not in lease(guest, name="db")
    assert "10.0.0.5" not in guest.run(LOOK_UP)[1]


def test_gateway_and_routes_are_handed_out(tmp_path, station):
    routes = ((IPv4Network("10.9.0.0/16"), IPv4Address("10.0.0.9")),)
    with Segment(
        "routed",
        subnet(gateway=IPv4Address("10.0.0.1"), routes=routes, domain="example.org"),
        directory=tmp_path,
    ) as made:
        port = made.port(mac=mac(5), addresses=[IPv4Address("10.0.0.5")])
        seen = lease(station(port))
    assert seen["router"] == "10.0.0.1"
    assert seen["search"] == "example.org"
    assert seen["staticroutes"] == (
        "169.254.169.254/32 10.0.0.2 10.9.0.0/16 10.0.0.9 0.0.0.0/0 10.0.0.1"
    )


@pytest.fixture
def second_subnet(segment):
    """Add 10.0.1.0/24 with a gateway to the segment."""
    segment.add_subnet(subnet(1, gateway=IPv4Address("10.0.1.1")))
    return segment


def test_each_subnet_of_a_segment_has_dhcp_names_and_the_metadata(second_subnet, attach, station):
    ports = [
        attach(5, "web"),
        second_subnet.port(mac=mac(5, 1), addresses=[IPv4Address("10.0.1.5")], names=["db"]),
    ]
    answerers = [Answerer(port, f"port {number}") for number, port in enumerate(ports)]
    there = [station(port) for port in ports]
    leases = [lease(each) for each in there]
    assert [each["ip"] for each in leases] == ["10.0.0.5", "10.0.1.5"]
    assert [each["serverid"] for each in leases] == ["10.0.0.2", "10.0.1.2"]
    assert [each.get("router") for each in leases] == [None, "10.0.1.1"]
    assert [each["staticroutes"].split()[1] for each in leases] == ["10.0.0.2", "10.0.1.2"]
    there[0].configure("10.0.0.5")
    there[1].configure("10.0.1.5", "ip route add 10.0.0.0/24 dev eth0")
    assert [each.ask("169.254.169.254") for each in there] == ["port 0", "port 1"]
    assert [each.senders for each in answerers] == [["10.0.0.5"], ["10.0.1.5"]]
    looks_up(there[0], "-type=a db.novalocal", "10.0.1.5")
    # Both are on one wire: with routes both ways, no router is needed.
    there[0].run("ip route add 10.0.1.0/24 dev eth0")
    assert there[0].pings("10.0.1.5")


def test_port_of_two_subnets_gets_its_first_address(second_subnet, station):
    addresses = [IPv4Address("10.0.1.5"), IPv4Address("10.0.0.5")]
    with second_subnet.port(mac=mac(5), addresses=addresses) as port:
        Answerer(port, "harness")
        there = station(port)
        assert lease(there)["ip"] == "10.0.1.5"
        for address in ("10.0.1.5", "10.0.0.5"):
            there.configure(address)
            assert there.ask("169.254.169.254") == "harness"
    again = second_subnet.port(mac=mac(6), addresses=[IPv4Address("10.0.1.5")])
    assert lease(station(again))["ip"] == "10.0.1.5"


def test_invalid_second_subnet_is_refused_and_changes_nothing(segment, attach, station):
    for wanted, sentence in (
        (subnet(), "has the addresses 10.0.0.0/24 already, which 10.0.0.0/24 overlaps"),
        (Subnet(IPv4Network("10.5.0.0/31"), IPv4Address("10.5.0.0")), "has no room for machines"),
    ):
        with pytest.raises(UsageError, match=sentence):
            segment.add_subnet(wanted)
    assert len(segment.subnets) == 1
    assert lease(station(attach(5)))["ip"] == "10.0.0.5"


def test_stations_reach_each_other_by_address_and_by_name(attach, station):
    one, two = station(attach(5, "web")), station(attach(6, "db", "primary"))
    one.configure("10.0.0.5")
    two.configure("10.0.0.6")
    assert one.pings("10.0.0.6")
    for name in ("db", "db.novalocal", "primary.novalocal"):
        looks_up(one, f"-type=a {name}", "10.0.0.6")
    looks_up(one, "-type=ptr 5.0.0.10.in-addr.arpa", "web.novalocal")
    assert one.run("busybox nslookup -type=a example.org 10.0.0.2")[0] != 0


def test_each_port_has_its_own_listeners(attach, station):
    ports = {number: attach(number) for number in (5, 6)}
    answerers = {number: Answerer(port, f"port {number}") for number, port in ports.items()}
    for number, port in ports.items():
        there = station(port)
        there.configure(f"10.0.0.{number}")
        assert there.ask("169.254.169.254") == f"port {number}"
        assert there.ask("169.254.169.254", 8000) == f"port {number}"
    assert answerers[5].senders == ["10.0.0.5"] * 2


def test_network_of_a_container_alone_starts_no_process_for_qemu(attach):
    with Alone([attach(5)], reason="a test") as link:
        assert link.macs == (mac(5),)
        with pytest.raises(MachineLostError, match="has been ended"):
            link.keeper.request("namespace")


def test_port_is_served_once_added_and_no_longer_when_removed(segment, attach, station):
    first = attach(5, "web")
    there = station(first)
    there.configure("10.0.0.5")

    def resolves(wanted: bool) -> None:
        # dnsmasq reads its files asynchronously.
        retry(
            lambda _: (there.run(LOOK_UP)[0] == 0) is wanted,
            Deadline(60, "dnsmasq to read its files"),
        )

    with attach(6, "db") as second:
        assert lease(station(second))["ip"] == "10.0.0.6"
        resolves(True)
    resolves(False)
    again = segment.port(mac=mac(7), addresses=[IPv4Address("10.0.0.6")])
    assert lease(station(again))["ip"] == "10.0.0.6"


@pytest.fixture
def bystander():
    """A server on every address of the host; yields its port."""
    with socket.create_server(("", 0)) as listener:
        yield listener.getsockname()[1]


def test_station_reaches_nothing_beyond_its_segment(attach, station, bystander):
    port = attach(5)
    there = station(port)
    there.configure("10.0.0.5", "ip route add default via 10.0.0.2")
    Answerer(port, "harness")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Find the address that the host would send from; no packet is sent.
        probe.connect(("192.0.2.1", 9))
        host = probe.getsockname()[0]
    assert there.ask("169.254.169.254") == "harness"
    for address in ("10.0.0.2", "169.254.169.254", host, "127.0.0.1"):
        assert there.ask(address, bystander, seconds=1) == ""
    assert not there.pings("192.0.2.1", tries=1)


def test_packets_to_elsewhere_are_refused_at_once(tmp_path, station):
    """As by the router of a Neutron network without a way out; a router has its own address."""
    gateway = IPv4Address("10.0.0.1")
    with Segment("private", subnet(gateway=gateway), directory=tmp_path) as segment:
        there = station(segment.port(mac=mac(5), addresses=[IPv4Address("10.0.0.5")]))
        segment.port(mac=mac(6), addresses=[IPv4Address("10.0.0.6")])
        there.configure("10.0.0.5", f"ip route add default via {gateway}")
        # The kernel would say so five times at once, and then once a second: a guest with a name
        # server that is not there asks more often.
        asks = "for each in $(busybox seq 40); do busybox nc 192.0.2.1 53 </dev/null; done"
        assert there.run(f"timeout 20 sh -c '{asks}'")[1].count("unreachable") == 40
        # What the services do not forward: a machine is reached by its own link, or not at all.
        there.run(f"ip route add 10.0.0.6/32 via {gateway}")
        assert "unreachable" in there.run("busybox nc 10.0.0.6 53 </dev/null")[1]
        assert "refused" in there.run(f"busybox nc {gateway} 80 </dev/null")[1]
        with Router("gateway", directory=tmp_path / "router") as router:
            number = router.attach(segment, mac=mac(1), address=gateway)
            assert there.pings(str(gateway))
            assert mac(1) in there.run("ip neighbour")[1]
            router.detach(number)
            assert there.pings(str(gateway))
            assert segment.mac in there.run("ip neighbour")[1]


def test_two_segments_with_the_same_addresses_are_isolated(segment, attach, station, tmp_path):
    with Segment("other", subnet(), directory=tmp_path / "other") as other:
        ours = attach(5, "web")
        theirs = other.port(mac=mac(6, 1), addresses=[IPv4Address("10.0.0.6")], names=["db"])
        one, two = station(ours), station(theirs)
        one.configure("10.0.0.5")
        two.configure("10.0.0.6")
        assert not one.pings("10.0.0.6", tries=1)
        assert one.run("busybox nslookup -type=a db.novalocal 10.0.0.2")[0] != 0


# -- spoofed senders --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trio(tmp_path_factory):
    """A segment with a victim, a thief and a witness, and the connections to their listeners."""
    directory = tmp_path_factory.mktemp("trio")
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(Segment("trio", subnet(), directory=directory))
        ports = {
            number: made.port(mac=mac(number), addresses=[IPv4Address(f"10.0.0.{number}")])
            for number in (5, 6, 7)
        }
        seen = {number: Answerer(port, f"port {number}") for number, port in ports.items()}
        stations = {number: Station(port) for number, port in ports.items()}
        for each in stations.values():
            stack.callback(each.close)
        yield ports, stations, seen


@pytest.fixture
def three(trio):
    """The three with addresses of their own and good links, whatever a test before has done."""
    ports, stations, seen = trio
    ports[5].join(ports[6])
    for number, each in stations.items():
        ports[number].shape()
        seen[number].senders.clear()
        each.run(f"ip link set eth0 down; ip link set eth0 address {mac(number)} up")
        each.configure(f"10.0.0.{number}", "ip neighbour flush all")
    return trio


def test_spoofed_address_is_dropped(three):
    ports, stations, seen = three
    before = refused(ports[6], "address")
    stations[6].configure("10.0.0.5")
    assert stations[6].ask("169.254.169.254", seconds=1) == ""
    assert not stations[6].pings("10.0.0.7", tries=1)
    assert seen[5].senders == seen[6].senders == []
    until_refused(ports[6], "address", more_than=before)


def test_spoofed_mac_and_address_are_dropped(three):
    ports, stations, seen = three
    before = refused(ports[6], "mac")
    stations[6].run(f"ip link set eth0 down; ip link set eth0 address {mac(5)} up")
    stations[6].configure("10.0.0.5")
    assert stations[6].ask("169.254.169.254", seconds=1) == ""
    assert seen[5].senders == seen[6].senders == []
    until_refused(ports[6], "mac", more_than=before)
    assert stations[5].ask("169.254.169.254") == "port 5"


def test_spoofed_arp_does_not_redirect_traffic(three):
    ports, stations, _ = three
    before = refused(ports[6], "address")
    for victim in ("10.0.0.5", "10.0.0.2"):
        stations[6].run(f"ip address add {victim}/32 dev eth0")
        stations[6].run(f"busybox arping -U -c 1 -I eth0 -s {victim} {victim}")
        stations[6].run(f"busybox arping -A -c 1 -I eth0 -s {victim} {victim}")
    until_refused(ports[6], "address", more_than=before)
    assert stations[7].pings("10.0.0.5")
    assert stations[7].ask("169.254.169.254") == "port 7"
    neighbours = stations[7].run("ip neighbour")[1]
    assert mac(5) in neighbours
    assert mac(6) not in neighbours


def test_other_dhcp_servers_are_not_heard(three):
    ports, stations, _ = three
    stations[6].run(
        "python3 -c 'import socket; s = socket.socket(type=socket.SOCK_DGRAM);"
        ' s.setsockopt(1, 6, 1); s.bind(("10.0.0.6", 67));'
        ' s.sendto(b"lease", ("255.255.255.255", 68))\''
    )
    assert until_refused(ports[6], "dhcp") == 1


def test_flooding_port_does_not_block_the_services(three):
    ports, stations, _ = three
    flood = stations[6].run(
        "timeout 300 python3 -c 'import socket; s = socket.socket(type=socket.SOCK_DGRAM);"
        ' s.setsockopt(1, 6, 1);\nwhile True: s.sendto(bytes(1400), ("10.0.0.255", 9))\''
        " >/dev/null 2>&1 & echo $!"
    )[1]

    def sent(more_than: int) -> int:
        return retry(
            lambda _: (number := ports[6].counts().get("sent", 0)) > more_than and number,
            Deadline(60, "the flood"),
        )

    before = sent(ports[6].counts().get("sent", 0) + 100)
    assert stations[5].ask("169.254.169.254") == "port 5"
    sent(before + 100)
    stations[6].run(f"kill {flood}")


# -- the links --------------------------------------------------------------------------------


def test_partition_separates_two_ports_and_not_the_third(three):
    ports, stations, _ = three
    ports[5].part(ports[6])
    for one, other in ((5, 6), (6, 5)):
        assert not stations[one].pings(f"10.0.0.{other}", tries=1)
        assert stations[one].pings("10.0.0.7")
    assert stations[5].ask("169.254.169.254") == "port 5"
    ports[6].join(ports[5])
    assert stations[5].pings("10.0.0.6")


def test_slow_link_delays_both_ways(three):
    ports, stations, _ = three
    assert stations[7].pings("10.0.0.5")
    ports[5].shape(delay=0.2)
    text = stations[7].run("busybox ping -c 1 -W 30 10.0.0.5")[1]
    fastest = float(text.rpartition("min/avg/max = ")[2].split("/")[0])
    assert fastest >= 400


def test_lossy_link_drops_frames(three):
    ports, stations, _ = three
    ports[5].shape(loss=1)
    assert not stations[7].pings("10.0.0.5", tries=1)
    ports[5].shape()
    assert stations[7].pings("10.0.0.5")


def test_harness_connects_to_a_port_and_receives_large_answers(three):
    ports, stations, _ = three
    size = 300_000
    stations[5].serve(
        2200,
        'python3 -c \'import socket; s = socket.create_server(("", 2200));'
        f" c = s.accept()[0]; c.sendall(bytes({size}))'",
    )
    with ports[5].connect(2200) as connection, connection.makefile("rb") as stream:
        connection.settimeout(60)
        assert len(stream.read()) == size
    with pytest.raises(ConnectionError, match=r"no connection to 10\.0\.0\.5 port 22"):
        ports[5].connect(22)


# -- bad input --------------------------------------------------------------------------------


INVALID_PORTS = (
    ({"mac": "fa:16:3e:00:00"}, "is not the MAC address of one machine"),
    ({"mac": "01:00:5e:00:00:01"}, "is not the MAC address of one machine"),
    ({"mac": mac(5)}, r'"fa:16:3e:00:00:05" is taken on "private"'),
    ({"addresses": []}, "needs one address"),
    ({"addresses": [IPv4Address("10.0.0.9")] * 2}, "needs one address or several different"),
    ({"addresses": [IPv4Address("10.0.1.9")]}, r'"10\.0\.1\.9" is not one of 10\.0\.0\.0/24'),
    ({"addresses": [IPv4Address("10.0.0.255")]}, "is not one of"),
    ({"addresses": [IPv4Address("10.0.0.5")]}, r'"10\.0\.0\.5" is taken'),
    ({"addresses": [IPv4Address("10.0.0.2")]}, r'"10\.0\.0\.2" is taken'),
    ({"names": ["web\n10.0.0.9 db"]}, "is not a host name"),
    ({"names": ["a,b"]}, "is not a host name"),
    ({"names": [f"name-{n}" for n in range(17)]}, "at most 16 addresses"),
)


def test_invalid_port_is_refused(segment, attach):
    attach(5)
    for options, sentence in INVALID_PORTS:
        wanted = {"mac": mac(9), "addresses": [IPv4Address("10.0.0.9")]} | options
        with pytest.raises(UsageError, match=sentence):
            segment.port(**wanted)
    assert len(segment.ports) == 1


@pytest.mark.parametrize(
    ("network", "options", "sentence"),
    [
        ("10.0.0.0/31", {}, "has no room for machines"),
        ("169.254.0.0/16", {}, "cannot have the addresses"),
        ("127.0.0.0/24", {}, "cannot have the addresses"),
        ("10.0.0.0/24", {"domain": "a,b"}, "is not a domain"),
        ("10.0.0.0/24", {"gateway": IPv4Address("10.1.0.1")}, "is not one of"),
    ],
)
def test_invalid_subnet_is_refused(tmp_path, network, options, sentence):
    with pytest.raises(UsageError, match=sentence):
        Segment(
            "odd",
            Subnet(IPv4Network(network), IPv4Network(network)[1], **options),
            directory=tmp_path,
        )


def test_invalid_link_is_refused(attach):
    port = attach(5)
    for options in ({"delay": -1}, {"delay": 61}, {"loss": 1.1}):
        with pytest.raises(UsageError):
            port.shape(**options)


# -- life and death ---------------------------------------------------------------------------

HARNESS = """
import json, sys, time
from pathlib import Path
from hotplate.network.segment import trial
with trial(Path(sys.argv[1])) as port:
    print(json.dumps([port.segment._keeper.pid, port.segment._server.pid]), flush=True)
    time.sleep(1000)
"""


@pytest.fixture
def own_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR for this test alone, writable for every user as /tmp is."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o1777)
        monkeypatch.setenv("TMPDIR", place)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(place)


def directories(place: Path) -> list[Path]:
    return list(place.glob("hotplate-dhcp-*"))


def inode(process: int) -> str:
    return str(Path(f"/proc/{process}/ns/net").readlink())


def namespaces() -> set[str]:
    """Return the network namespaces of all processes."""
    seen = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            seen.add(inode(int(entry.name)))
        except OSError:
            continue
    return seen


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killed_harness_leaves_nothing(tmp_path, own_tmp, how):
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, tmp_path], stdout=subprocess.PIPE, text=True
    ) as harness:
        assert harness.stdout is not None
        pids = json.loads(harness.stdout.readline())
        watched = [os.pidfd_open(pid) for pid in pids]
        namespace = inode(pids[0])
        assert len(directories(own_tmp)) == 1
        harness.send_signal(how)
        for each in watched:
            poller = select.poll()
            poller.register(each, select.POLLIN)
            assert poller.poll(60_000)
            os.close(each)
    assert namespace not in namespaces()
    assert directories(own_tmp) == []


def test_closed_segment_leaves_nothing(tmp_path, own_tmp):
    with module.trial(tmp_path) as port:
        assert len(directories(own_tmp)) == 1
        pid = port.segment._keeper.pid
        assert inode(pid) != inode(os.getpid())
    assert not Path(f"/proc/{pid}").exists()
    assert directories(own_tmp) == []


def test_closed_port_is_in_no_partition(segment, attach):
    first, second = attach(5), attach(6)
    first.part(second)
    second.close()
    assert first.parted == set()
    first.part(attach(7))
    segment.close()
    first.close()


def test_killed_helper_leaves_nothing(tmp_path, own_tmp):
    with module.trial(tmp_path) as port:
        os.kill(port.segment._keeper.pid, signal.SIGKILL)
        with pytest.raises(MachineLostError):
            port.plug()
    assert directories(own_tmp) == []


def test_end_of_dnsmasq_is_noticed(tmp_path):
    seen: list[int] = []
    ended = select.poll()
    with Segment(
        "lost", subnet(), directory=tmp_path, on_exit=lambda status, _: seen.append(status)
    ) as made:
        assert made._server is not None
        pidfd = os.pidfd_open(made._server.pid)
        ended.register(pidfd, select.POLLIN)
        os.kill(made._server.pid, signal.SIGKILL)
        assert ended.poll(60_000)
        os.close(pidfd)
        made._server.kill()
    assert seen == [-signal.SIGKILL]


def test_refusal_is_empty_on_this_host():
    assert refusal() == ""


def test_host_without_namespaces_is_refused_with_the_reason():
    shown = subprocess.run(
        [
            *("unshare", "-Ur", "sh", "-c", 'echo 0 >/proc/sys/user/max_net_namespaces; exec "$@"'),
            *("sh", sys.executable, "-c"),
            "from hotplate.network.segment import refusal; print(refusal())",
        ],
        capture_output=True,
        text=True,
    )
    assert shown.stdout.startswith("this host does not allow networks between servers: "), shown
    assert shown.stdout.count("\n") == 1


def test_missing_dnsmasq_error_names_its_package(monkeypatch, tmp_path):
    (tmp_path / "ip").symlink_to(shutil.which("ip") or "")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "SYSTEM_PROGRAMS", str(tmp_path))
    assert refusal() == 'the program "dnsmasq" was not found in PATH'
    with pytest.raises(HostError) as raised, module.trial(tmp_path):
        pass
    assert raised.value.hint.endswith("dnsmasq-base")


def test_programs_outside_an_ordinary_users_path_are_used(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert refusal() == ""


@pytest.mark.root
def test_processes_of_a_segment_do_not_run_as_root(tmp_path):
    with module.trial(tmp_path) as port:
        assert port.segment._server is not None
        for pid in (port.segment._keeper.pid, port.segment._server.pid):
            status = Path(f"/proc/{pid}/status").read_text()
            ids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
            assert "0" not in ids
            assert Path(f"/proc/{pid}/ns/user").readlink() != Path("/proc/self/ns/user").readlink()


@pytest.mark.root
def test_ordinary_user_has_networks():
    system = "/usr/bin/python3"
    with tempfile.TemporaryDirectory() as name:
        # This user can read it, unlike perhaps this checkout and this Python.
        directory = Path(name)
        directory.chmod(0o755)
        shutil.copytree(Path(hotplate.__file__).parent, directory / "hotplate")
        command = "from hotplate.network.segment import refusal; print(repr(refusal()))"
        shown = subprocess.run(
            ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", system, "-c", command],
            cwd=directory,
            capture_output=True,
            text=True,
        )
    assert shown.stdout == "''\n", shown


def until_answers(port: Port) -> None:
    """Wait until a port answers by ARP."""
    retry(lambda _: bool(port.ask()), Deadline(60, "an answer"), every=0.2)


def until_silent(port: Port) -> None:
    """Wait until a port answers nothing for a second; earlier answers may come late."""

    def is_silent(_: bool) -> bool:
        port.ask()
        with contextlib.suppress(DeadlineExceeded):
            retry(lambda _: bool(port.ask()), Deadline(1, "an answer"), every=0.2)
            return False
        return True

    retry(is_silent, Deadline(60, "silence"))


def test_port_answers_while_its_machine_has_the_address_and_the_link_is_up(attach, station):
    """A guest's kernel answers ARP by itself, independent of its programs (arp(7))."""
    port = attach(5)
    machine = station(port)
    until_silent(port)
    machine.configure("10.0.0.77")
    until_silent(port)
    machine.configure("10.0.0.5")
    until_answers(port)
    assert machine.run("ip link set eth0 down")[0] == 0
    until_silent(port)
    assert machine.run("ip link set eth0 up")[0] == 0
    machine.configure("10.0.0.5")
    until_answers(port)


#: Sends a frame of VLAN 7 from a MAC address to another (IEEE 802.1Q).
TAGGED = """
import socket, sys
target, source = (bytes.fromhex(each) for each in sys.argv[1:])
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
    raw.bind(("eth0", 0))
    raw.send(target + source + bytes.fromhex("8100000788b5") + bytes(60))
"""
#: Prints the VLAN of the first such frame, which is beside it, and its size (packet(7)); before,
#: that it listens.
LISTEN = """
import socket
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as raw:
    raw.bind(("eth0", 3))
    raw.setsockopt(263, 8, 1)
    print("listens", flush=True)
    while True:
        frame, beside, _, _ = raw.recvmsg(2000, 100)
        if frame[12:14] == bytes.fromhex("88b5"):
            print(int.from_bytes(beside[0][2][16:18], "little"), len(frame))
            break
"""
EVERYBODY, BOND, OTHER_BOND = "f" * 12, "fa163e00ffff", "fa163e00fffe"


def hears(listener, sender, target: str, source: str, *, seconds: float = 60) -> str:
    """Return what one station hears of a tagged frame that another sends, as soon as it does."""
    shown = f"/tmp/heard-{os.getpid()}-{id(listener)}"

    def lines() -> list[str]:
        return listener.run(f"cat {shown}")[1].splitlines()

    listener.run(f"timeout 600 python3 -c '{LISTEN}' >{shown} 2>&1 &")
    retry(lambda _: lines() == ["listens"], Deadline(60, "the listener"), every=0.05)
    sender.run(f"python3 -c '{TAGGED}' {target} {source}")
    with contextlib.suppress(DeadlineExceeded):
        retry(lambda _: len(lines()) > 1, Deadline(seconds, "the frame"), every=0.05)
    heard = lines()[1:]
    listener.run(f"rm {shown}")
    return "".join(heard)


def test_vlan_tags_pass_only_between_ports_without_security(segment: Segment, station) -> None:
    ports = [
        segment.port(mac=mac(each), addresses=[IPv4Address(f"10.0.0.{each}")], secured=each == 7)
        for each in (5, 6, 7)
    ]
    one, two, secured = (station(port) for port in ports)
    assert hears(two, one, EVERYBODY, BOND) == "7 74"
    # A MAC address that is no port's is at the port that has sent from it.
    assert hears(one, two, BOND, OTHER_BOND) == "7 74"
    assert hears(two, one, "fa163e00fffd", BOND, seconds=1) == ""
    assert hears(two, secured, EVERYBODY, mac(7).replace(":", ""), seconds=1) == ""
    assert until_refused(ports[2], "protocol") == 1
