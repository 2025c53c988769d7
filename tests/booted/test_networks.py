"""Two servers of a stack on one network reach each other and nothing else."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotplate.events import classify
from hotplate.plugin.pool import LocalPlatform
from hotplate.plugin.server import ServerUnderTest
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import load
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import GuestDeadline, retry

pytestmark = [pytest.mark.boots, pytest.mark.tool("dnsmasq"), pytest.mark.xdist_group("networks")]
SECONDS = 900
#: The host's address in QEMU's user network, and an address of another network.
HOST = ("169.254.169.254", "127.0.0.1", "10.0.2.2", "192.0.2.1")
METADATA = "http://169.254.169.254/openstack/latest/meta_data.json"
#: Announces an address at a MAC address (RFC 826, an unsolicited reply).
ARP = """
import socket, sys
mac, sender = (bytes.fromhex(each) for each in sys.argv[1:])
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
    device = next(name for _, name in socket.if_nameindex() if name != "lo")
    raw.bind((device, 0))
    head = bytes.fromhex("0001080006040002")
    frame = b"\\xff" * 6 + mac + b"\\x08\\x06" + head + mac + sender + b"\\xff" * 6 + sender
    for _ in range(20):
        raw.send(frame)
"""


#: Sends frames that a port must not send (IEEE 802.3 and 802.1Q, RFC 791, 8200, 2131).
FORGE = """
import socket, struct, sys
kind, own_mac, other_mac, own, other = sys.argv[1], *map(bytes.fromhex, sys.argv[2:])

def ethernet(protocol, data, source=own_mac):
    return b"\\xff" * 6 + source + protocol + data

def ipv4(ports, data, sender):
    udp = struct.pack("!4H", *ports, 8 + len(data), 0) + data
    fields = (0x45, 0, 20 + len(udp), 0, 0, 64, 17)
    ends = sender + b"\\xff" * 4
    total = sum(struct.unpack("!10H", struct.pack("!BBHHHBBH", *fields, 0) + ends))
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!BBHHHBBH", *fields, ~total & 0xFFFF) + ends + udp

# An offer, as of a DHCP server (RFC 2131): op, hardware, the address offered, the magic cookie.
magic = bytes.fromhex("63825363350102ff")
offer = bytes([2, 1, 6, 0]) + bytes(12) + other + bytes(216) + magic
frame = {
    "mac": lambda: ethernet(b"\\x08\\0", ipv4((9, 9), b"x" * 20, own), other_mac),
    "address": lambda: ethernet(b"\\x08\\0", ipv4((9, 9), b"x" * 20, other)),
    "dhcp": lambda: ethernet(b"\\x08\\0", ipv4((67, 68), offer, own)),
    "vlan": lambda: ethernet(b"\\x81\\0", b"\\0\\5\\x08\\0" + ipv4((9, 9), b"x" * 20, own)),
    "ipv6": lambda: ethernet(b"\\x86\\xdd", struct.pack("!IHBB", 6 << 28, 0, 59, 64) + bytes(32)),
}[kind]()
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
    device = next(name for _, name in socket.if_nameindex() if name != "lo")
    raw.bind((device, 0))
    for _ in range(20):
        raw.send(frame)
"""


@pytest.fixture(scope="module")
def stack(testbed: Testbed) -> Stack:
    template = load(Path(__file__).parent / "templates" / "page.yaml")
    return Stack.create(testbed.cloud, template, name="pages").wait(seconds=SECONDS)


@pytest.fixture(scope="module")
def servers(testbed: Testbed, stack: Stack) -> dict[str, Server]:
    return {each.spec.name: each for each in testbed.servers}


def run(server: Server, command: str) -> str:
    return server.shell(seconds=SECONDS).run(command, timeout=600).text


def address(server: Server) -> str:
    return server.spec.ports[0].addresses[0].address


def fetches(server: Server, url: str, options: str = "") -> bool:
    """Return True when the URL answers; the guest must have curl."""
    shown = run(server, f"curl -sS -m 5 {options} {url} -o /dev/null 2>&1; echo status $?")
    assert shown.endswith(("status 0", "status 7", "status 28")), shown
    return shown.endswith("status 0")


def who_asks(server: Server) -> str:
    return run(server, f"curl -sS -m 120 {METADATA}")


def test_second_server_fetches_a_page_from_the_first(stack: Stack, servers) -> None:
    assert stack.status == "CREATE_COMPLETE", stack.reason
    assert stack.outputs["by_address"] == stack.outputs["by_name"] == "a page of web"
    assert stack.outputs["address"] == address(servers["web"])
    for server in servers.values():
        assert f" {address(server)}/24 " in run(server, "ip -4 -o address")
        assert server.spec.id in who_asks(server)


def test_harness_connects_to_a_server(servers) -> None:
    with servers["web"].machine.wiring.connect(8099, seconds=60) as connection:
        connection.settimeout(60)
        connection.sendall(b"GET /page HTTP/1.0\r\n\r\n")
        with connection.makefile("rb") as stream:
            assert stream.read().endswith(b"a page of web")


@pytest.fixture(scope="module")
def bystander() -> Iterator[int]:
    """The port of a server that listens on every address of the host."""
    with socket.create_server(("", 0)) as listener:
        yield listener.getsockname()[1]


def own_address() -> str:
    """Return the host's source address; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])


def test_guest_reaches_neither_the_host_nor_other_networks(servers, bystander: int) -> None:
    client = servers["client"]
    services = client.spec.ports[0].addresses[0].dhcp_server
    routes = (f"default via {services} metric 1", f"10.0.2.0/24 via {services}")
    run(client, "; ".join(f"ip route add {each}" for each in routes))
    try:
        # The last address is that of isolated servers.
        targets = (*HOST, services, own_address(), "169.254.169.15")
        # All at once, because most wait for an answer until their time is up.
        asked = " ".join(
            f"(curl -s -m 5 http://{each}:{bystander}/ -o /dev/null; echo {each} $?) &"
            for each in targets
        )
        answers = dict(line.split() for line in run(client, f"{asked} wait").splitlines())
        assert answers.keys() == {*targets}
        assert {*answers.values()} <= {"7", "28"}, answers
    finally:
        run(client, "; ".join(f"ip route del {each}" for each in routes))
    assert client.spec.id in who_asks(client)


def requests_of(testbed: Testbed, server: Server) -> int:
    return sum(
        classify.is_metadata_fetch(each) and each.server == server.spec.id
        for each in testbed.events
    )


def test_request_from_another_servers_address_gets_no_metadata(testbed: Testbed, servers) -> None:
    web, client = servers["web"], servers["client"]
    seen = requests_of(testbed, web)
    nic = run(client, "ls /sys/class/net | grep -vx lo")
    run(client, f"ip address add {address(web)}/32 dev {nic}")
    try:
        assert not fetches(client, METADATA, f"--interface {address(web)}")
        assert requests_of(testbed, web) == seen
    finally:
        run(client, f"ip address del {address(web)}/32 dev {nic}")
    assert client.spec.id in who_asks(client)
    assert web.spec.id in who_asks(web)


def until_refused(server: Server, reason: str, number: int) -> None:
    """Wait until so many frames were refused; the switch handles them a moment later."""
    (cable,) = server.machine.wiring.cables
    retry(
        lambda _: cable.counts().get(f"refused: {reason}", 0) >= number,
        GuestDeadline(60, "the frames to be refused"),
        every=0.5,
    )


@pytest.mark.parametrize("whose", ["web", "services"])
def test_forged_arp_redirects_no_traffic(servers, whose: str) -> None:
    web, client = servers["web"], servers["client"]
    own = client.spec.ports[0]
    victim = address(web) if whose == "web" else own.addresses[0].dhcp_server
    client.shell().copy_in(ARP.encode(), "/root/arp.py")
    words = f"{own.mac.replace(':', '')} {socket.inet_aton(victim).hex()}"
    (cable,) = client.machine.wiring.cables
    before = cable.counts().get("refused: address", 0)
    assert run(client, f"python3 /root/arp.py {words} && echo sent") == "sent"
    until_refused(client, "address", before + 20)
    assert own.mac not in run(web, f"ip neighbour show {victim}")
    assert web.spec.id in who_asks(web)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("mac", "mac"),
        ("address", "address"),
        ("dhcp", "dhcp"),
        ("vlan", "protocol"),
        ("ipv6", "protocol"),
    ],
)
def test_forged_frames_reach_no_server(servers, kind: str, reason: str) -> None:
    web, client = servers["web"], servers["client"]
    own, other = (each.spec.ports[0] for each in (client, web))
    ends = [each.mac.replace(":", "") for each in (own, other)]
    ends += [socket.inet_aton(address(each)).hex() for each in (client, web)]
    client.shell().copy_in(FORGE.encode(), "/root/forge.py")
    (cable,) = client.machine.wiring.cables
    before = cable.counts().get(f"refused: {reason}", 0)
    assert run(client, f"python3 /root/forge.py {kind} {' '.join(ends)} && echo sent") == "sent"
    until_refused(client, reason, before + 20)
    assert web.spec.id in who_asks(web)
    assert client.spec.id in who_asks(client)


WAITS = """#!/bin/sh
until curl -sS -m 3 "$page" >"$heat_outputs_path.page" 2>/dev/null; do
    echo "hotplate: no page yet" >/dev/console
    sleep 1
done
"""


@pytest.mark.parametrize("cut", ["block", "part"])
def test_hook_waits_for_other_server_until_its_link_is_back(
    testbed: Testbed, servers, cut: str
) -> None:
    web, client = (
        ServerUnderTest(LocalPlatform(testbed, servers[name])) for name in ("web", "client")
    )
    assert client.can_reach(web, 8099)
    since = len(testbed.events)
    web.block("hotplate") if cut == "block" else web.part(client)
    assert not client.can_reach(web, 8099, seconds=3)
    deployment = client.deploy(
        group="script",
        config=WAITS,
        inputs={"page": f"http://{web.address()}:8099/page"},
        outputs=["page"],
    )
    assert testbed.events.wait(
        lambda event: "no page yet" in (classify.console_text(event) or ""),
        seconds=SECONDS,
        since=since,
    )
    web.unblock("hotplate") if cut == "block" else web.join(client)
    deployment.wait(seconds=SECONDS)
    assert deployment.outputs["page"] == "a page of web", client.diagnosis()


def test_crash_of_one_server_leaves_the_other(testbed: Testbed, servers) -> None:
    web, client = servers["web"], servers["client"]
    testbed.compute.stop(web.spec.id)
    assert not fetches(client, f"http://{address(web)}:8099/page")
    assert client.spec.id in who_asks(client)
    testbed.compute.start(web.spec.id)
    # The crash ended the process that was deployed; a refused connection is an answer.
    retry(
        lambda _: "(7)" in run(client, "curl -sS -m 5 http://web.novalocal:8099/ 2>&1"),
        GuestDeadline(SECONDS, "the first server to be there again"),
        every=2,
    )
