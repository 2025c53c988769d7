"""Tiny guests as Nova's servers on networks: power, saved disks, and reachability.

Two are booted once for all of these tests. Tests without a guest are in test_segments.py.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import tiny_guest
from ports import port, router, spec

from hotplate.cloud.nova.compute import ServerSpec
from hotplate.errors import MachineLostError, UsageError
from hotplate.events.kinds import LinkChange, LinkPart, LinkShape
from hotplate.events.log import EventLog
from hotplate.events.topology import of_events
from hotplate.plugin.pool import LocalPlatform
from hotplate.plugin.server import ServerUnderTest
from hotplate.testbed import compute
from hotplate.testbed.compute import LocalCompute
from hotplate.timing.deadline import Deadline, GuestDeadline, retry

pytestmark = [
    pytest.mark.boots,
    pytest.mark.network,
    pytest.mark.tool("qemu-system-x86_64"),
    pytest.mark.tool("dnsmasq"),
]
BOOT_SECONDS = 150
ECHO = 2300
WEB = spec("web", port(5, names=("web",)))
LOG = spec("log", port(7, network=1, names=("log",)))
DB = spec("db", port(6, names=("db",)), port(6, network=1, names=("db",)))


class Services:
    """A cloud that answers each guest with the id of its server."""

    def serve(
        self,
        server_id: str,
        *listeners: Mapping[int, socket.socket],
        vendor_data: str = "",
        isolated: bool = False,
    ) -> contextlib.AbstractContextManager[object]:
        for listener in (each for of_one in listeners for each in of_one.values()):
            threading.Thread(target=self._answer, args=(listener, server_id), daemon=True).start()
        return contextlib.ExitStack()

    def _answer(self, listener: socket.socket, server_id: str) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(100)
                    connection.sendall(f"{server_id}\n".encode())

    def metadata_tree(self, server_id: str) -> Mapping[str, bytes]:
        return {}

    def notify(self) -> None:
        pass


class Cloud:
    """Two servers on networks, and helpers to query them."""

    def __init__(self, directory: Path) -> None:
        self.services = Services()
        self.events = EventLog()
        self.compute = LocalCompute(
            tiny.image(directory),
            settings=tiny.settings(directory),
            directory=directory / "servers",
            events=self.events,
            networks=directory / "networks",
        )

    def boot(self, *specs: ServerSpec) -> None:
        for each in specs:
            self.compute.boot(each, self.services)
        self.attach(*specs)

    def attach(self, *specs: ServerSpec) -> None:
        """Wait until their shells answer."""
        for each in specs:
            server = self.compute.servers[each.id]
            server.nonce = server._boot_nonce = tiny_guest.NONCE
            server.shell(seconds=BOOT_SECONDS)

    def run(self, one: ServerSpec, command: str) -> str:
        return self.compute.servers[one.id].shell().run(command).text

    def pings(self, one: ServerSpec, target: str, *, tries: int = 5) -> bool:
        """Return whether an address answers one of so many pings; the first answer ends it."""
        ping = f"ping -c 1 -W {5 if tries > 1 else 1} {target}"
        command = f"for try in {' '.join('12345'[:tries])}; do {ping} && exit; done; exit 1"
        return self.compute.servers[one.id].shell().run(command).rc == 0

    def who_asks(self, one: ServerSpec) -> str:
        return self.run(one, "echo ask | timeout 50 nc 169.254.169.254 80")


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    made = Cloud(tmp_path_factory.mktemp("cloud"))
    with contextlib.ExitStack() as owned:
        owned.callback(made.compute.close)
        made.boot(WEB, DB)
        yield made


def both_ways(cloud: Cloud) -> bool:
    return (
        cloud.pings(WEB, "db")
        and cloud.pings(DB, "10.0.0.5")
        and cloud.who_asks(WEB) == WEB.id
        and cloud.who_asks(DB) == DB.id
    )


def test_servers_reach_each_other_and_the_cloud_identifies_them(cloud: Cloud) -> None:
    shown = cloud.run(DB, "hostname; ip -4 -o address")
    assert shown.startswith("db\n")
    assert {"10.0.0.6/24", "10.0.1.6/24"} <= {*shown.split()}
    assert both_ways(cloud)


def under_test(cloud: Cloud, one: ServerSpec) -> ServerUnderTest:
    testbed: Any = SimpleNamespace(compute=cloud.compute, events=EventLog())
    return ServerUnderTest(LocalPlatform(testbed, cloud.compute.servers[one.id]))


def served(port: int, command: str) -> str:
    """Return a shell command that starts a server in the background and waits until it listens."""
    listens = f"grep -q ':{port:04X} 0*:0000 0A ' /proc/net/tcp*"
    wait = f"for try in $(seq 600); do {listens} && break; sleep 0.1; done"
    return f"({command}) >/dev/null 2>&1 & {wait}; {listens}"


@pytest.fixture
def pair(cloud: Cloud) -> tuple[ServerUnderTest, ServerUnderTest]:
    """As a test has them; the second runs an echo server."""
    web, db = under_test(cloud, WEB), under_test(cloud, DB)
    db.succeed(f"pidof nc || {{ {served(ECHO, f'nc -ll -p {ECHO} -e cat')}; }}")
    return web, db


def reaches_again(one: ServerUnderTest, other: ServerUnderTest) -> None:
    one.retry(lambda _: one.can_reach(other, ECHO), f"{one} to reach {other} again")


def test_server_has_addresses_and_connects_to_others(pair) -> None:
    web, db = pair
    assert (web.address(), db.address()) == ("10.0.0.5", "10.0.0.6")
    assert (db.address("private"), db.address("network-1")) == ("10.0.0.6", "10.0.1.6")
    assert web.can_reach(db, ECHO)
    assert not web.can_reach(db, ECHO + 1)
    assert not web.can_reach(db, ECHO, network="backend", seconds=1)
    with pytest.raises(UsageError, match='"web" is not on a network "backend", but on "private"'):
        web.address("backend")


def test_link_is_cut_and_restored(cloud: Cloud, pair) -> None:
    web, db = pair
    db.block("backend")
    assert web.can_reach(db, ECHO)
    db.block("private")
    assert not web.can_reach(db, ECHO, seconds=1)
    assert cloud.who_asks(WEB) == WEB.id
    db.unblock("private")
    reaches_again(web, db)
    db.unblock()
    links = [change.up for each in cloud.events if (change := LinkChange.of(each))]
    assert links == [False, False, False, True]


def test_parted_servers_still_reach_the_cloud(cloud: Cloud, pair) -> None:
    web, db = pair
    web.part(db)
    assert not web.can_reach(db, ECHO, seconds=1)
    assert cloud.who_asks(WEB) == WEB.id
    assert cloud.who_asks(DB) == DB.id
    db.join(web, network="private")
    reaches_again(web, db)
    parts = [(each.server, part) for each in cloud.events if (part := LinkPart.of(each))]
    assert parts == [
        (WEB.id, LinkPart("private", "db", parted=True)),
        (DB.id, LinkPart("private", "web", parted=True)),
        (DB.id, LinkPart("private", "web", parted=False)),
        (WEB.id, LinkPart("private", "db", parted=False)),
    ]
    with pytest.raises(UsageError, match='"db" and "db" share no network'):
        db.part(db)


def test_link_is_shaped_and_restored(cloud: Cloud, pair) -> None:
    web, db = pair
    web.shape("private", delay=0.4)
    shown = web.succeed(f"ping -c 2 -W 20 {db.address()}")
    assert float(re.search(r"min/avg/max = ([0-9.]+)/", shown)[1]) >= 800
    web.shape(loss=1)
    assert not web.can_reach(db, ECHO, seconds=1)
    web.shape()
    reaches_again(web, db)
    with pytest.raises(UsageError, match="a loss is a share from 0 to 1, not 50"):
        web.shape(loss=50)
    shapes = [shape for each in cloud.events if (shape := LinkShape.of(each))]
    assert [(each.network, each.delay, each.loss) for each in shapes] == [
        ("private", 0.4, 0.0),
        ("private", 0.0, 1),
        ("private", 0.0, 0.0),
    ]


def test_harness_connects_to_a_server(cloud: Cloud) -> None:
    cloud.run(DB, served(2200, "while :; do echo from db | nc -l -p 2200; done"))
    link = cloud.compute.servers[DB.id].machine.wiring
    with link.connect(2200, seconds=60) as connection:
        connection.settimeout(60)
        assert connection.recv(100) == b"from db\n"


def test_server_with_a_spoofed_address_reaches_no_metadata(cloud: Cloud) -> None:
    link = cloud.compute.servers[DB.id].machine.wiring

    def become(mac: str, address: str, *, other_link: str) -> None:
        cloud.run(
            DB,
            f"ip link set eth0 down; ip link set eth0 address {mac}; ip link set eth0 up; "
            f"ip address flush dev eth0; ip address add {address}/24 dev eth0; "
            f"ip link set eth1 {other_link}; ip route add 169.254.169.254 via 10.0.0.2",
        )

    become(WEB.ports[0].mac, "10.0.0.5", other_link="down")
    try:
        assert cloud.run(DB, "echo ask | timeout 2 nc 169.254.169.254 80") == ""
        # The switch handles frames a moment later.
        retry(
            lambda _: link.cables[0].counts().get("refused: mac", 0) > 0,
            Deadline(60, "the refusal"),
        )
        assert cloud.who_asks(WEB) == WEB.id
    finally:
        become(DB.ports[0].mac, "10.0.0.6", other_link="up")
    assert cloud.who_asks(DB) == DB.id


def test_saved_server_is_on_its_network_again(cloud: Cloud, tmp_path: Path) -> None:
    """It gets a new cable, and nothing has to be learned."""
    machine = cloud.compute.servers[WEB.id].machine
    machine.save_state(tmp_path / "state")
    cloud.compute.stop(WEB.id)
    machine.start(incoming=tmp_path / "state")
    cloud.compute._set_state(WEB.id, "ACTIVE")
    cloud.attach(WEB)
    assert both_ways(cloud)


def test_suspended_server_is_reachable_after_resume(cloud: Cloud) -> None:
    for stop, go_on in (("suspend", "resume"), ("pause", "unpause")):
        getattr(cloud.compute, stop)(DB.id)
        assert not cloud.pings(WEB, "10.0.0.6", tries=1)
        getattr(cloud.compute, go_on)(DB.id)
        assert cloud.pings(WEB, "10.0.0.6")


def test_crash_of_one_server_leaves_the_other(cloud: Cloud) -> None:
    cloud.compute.stop(DB.id)
    assert not cloud.pings(WEB, "10.0.0.6", tries=1)
    assert cloud.who_asks(WEB) == WEB.id
    replugged(cloud)
    cloud.compute.start(DB.id)
    cloud.attach(DB)
    assert both_ways(cloud)
    assert "10.0.1.9/24" in cloud.run(DB, "ip -4 -o address")


GET_ADDRESS = """\
nic=$(grep -l {mac} /sys/class/net/*/address | cut -d/ -f5)
ip link set "$nic" up && udhcpc -q -n -t 50 -T 1 -O search -i "$nic" -s /dhcp
"""


def test_interface_is_plugged_while_the_server_runs(cloud: Cloud) -> None:
    new = port(11, network=1, names=("web",))
    both = replace(WEB, ports=(*WEB.ports, new))
    cloud.compute.replug(both, cloud.services)
    retry(
        lambda _: new.mac in cloud.run(WEB, "cat /sys/class/net/*/address"),
        GuestDeadline(60, "the guest to see its interface"),
        every=0.5,
    )
    cloud.run(WEB, GET_ADDRESS.format(mac=new.mac))
    assert "10.0.1.11/24" in cloud.run(WEB, "ip -4 -o address")
    assert cloud.pings(WEB, under_test(cloud, DB).address("backend"))
    assert under_test(cloud, WEB).address("backend") == "10.0.1.11"
    # Requests through the new interface come from the same server.
    cloud.run(WEB, "ip route replace 169.254.169.254 via 10.0.1.2")
    assert cloud.who_asks(WEB) == WEB.id
    cloud.compute.hard_reboot(WEB.id)
    cloud.attach(WEB)
    assert {"10.0.0.5/24", "10.0.1.11/24"} <= {*cloud.run(WEB, "ip -4 -o address").split()}

    cloud.compute.replug(WEB, cloud.services)
    assert new.mac not in cloud.run(WEB, "cat /sys/class/net/*/address")
    assert not cloud.pings(DB, "10.0.1.11", tries=1)
    # Its name server was on the removed network.
    cloud.run(WEB, "udhcpc -q -n -t 50 -T 1 -O search -O staticroutes -i eth0 -s /dhcp")
    assert both_ways(cloud)
    # The address is free for another port.
    cloud.compute.replug(both, cloud.services)
    cloud.compute.replug(WEB, cloud.services)


def replugged(cloud: Cloud) -> None:
    """Replace the second port of the second server, which is off."""
    order = [*cloud.compute.servers]
    many = spec("db", *(port(6, network=each) for each in range(9)))
    with pytest.raises(UsageError, match="has 9 ports"):
        cloud.compute.replug(many, cloud.services)
    other = spec("db", DB.ports[0], port(9, network=1, names=("db",)))
    cloud.compute.replug(other, cloud.services)
    assert [*cloud.compute.servers] == order
    assert cloud.compute.status(DB.id) == ("SHUTOFF", "")


def test_rebooted_server_is_on_its_networks_again(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tiny guest ignores its power button.
    monkeypatch.setattr(compute, "REBOOT_SECONDS", 0.1)
    cloud.compute.reboot(DB.id)
    retry(
        lambda _: cloud.compute.status(DB.id)[0] == "ACTIVE",
        GuestDeadline(60, "the soft reboot"),
        every=0.1,
    )
    cloud.attach(DB)
    assert cloud.pings(WEB, "10.0.0.6")
    cloud.compute.hard_reboot(DB.id)
    cloud.attach(DB)
    assert both_ways(cloud)


def test_deleted_server_leaves_the_other_and_can_be_started_again(cloud: Cloud) -> None:
    """As in a session that continues with the servers of another."""
    networks = cloud.compute.segments
    assert networks is not None
    assert len(networks._segments) == 2
    cloud.compute.delete(DB.id)
    assert len(networks._segments) == 1
    assert cloud.who_asks(WEB) == WEB.id
    with pytest.raises(MachineLostError):
        cloud.compute.stop(DB.id)
    cloud.compute.go_on(DB, cloud.services)
    cloud.attach(DB)
    assert both_ways(cloud)


def test_router_connects_to_a_server_on_another_network(cloud: Cloud) -> None:
    cloud.boot(LOG)
    for one, gateway in ((WEB, "10.0.0.1"), (LOG, "10.0.1.1")):
        cloud.run(one, f"ip route replace default via {gateway}")
    assert not cloud.pings(WEB, "10.0.1.7", tries=1)
    cloud.compute.route([router(0, 1)])
    (shown,) = of_events(cloud.compute.events).routers
    assert [*shown.interfaces.values()] == ["10.0.0.1", "10.0.1.1"]
    assert cloud.pings(WEB, "10.0.1.7")
    assert cloud.pings(LOG, "10.0.0.5")
    assert [cloud.who_asks(each) for each in (WEB, LOG)] == [WEB.id, LOG.id]
    cloud.compute.route([])
    assert not cloud.pings(WEB, "10.0.1.7", tries=1)
    cloud.compute.delete(LOG.id)


def test_testbed_leaves_no_process_when_it_ends(cloud: Cloud) -> None:
    """Last, because there are no servers after it."""
    networks = cloud.compute.segments
    assert networks is not None
    pids = {segment._keeper.pid for segment in networks._segments.values()}
    pids |= {server.machine.pid or 0 for server in cloud.compute.servers.values()}
    assert len(pids) == 4
    cloud.compute.close()
    retry(
        lambda _: not any(Path(f"/proc/{pid}").exists() for pid in pids),
        Deadline(60, "the processes to end"),
        every=0.1,
    )
