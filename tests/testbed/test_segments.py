"""The networks of a testbed's servers: real segments, and no machines."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path

import pytest
from ports import port, spec

from hotplate.cloud.http.addresses import PORTS
from hotplate.cloud.nova.compute import PortAddress, RouterInterface, RouterSpec
from hotplate.errors import HostError, MachineLostError, UsageError
from hotplate.machine.wiring import Cables
from hotplate.network import segment as segment_module
from hotplate.testbed.segments import Segments, subnets_of

pytestmark = [pytest.mark.tool("dnsmasq"), pytest.mark.tool("ip")]


MAC = "fa:16:3e:00:01:01"


class Losses(list[MachineLostError]):
    """The losses of networks that ended by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.came = threading.Event()

    def note(self, error: MachineLostError) -> None:
        self.append(error)
        self.came.set()


@pytest.fixture
def losses() -> Losses:
    return Losses()


@pytest.fixture
def networks(tmp_path: Path, losses: Losses) -> Iterator[Segments]:
    made = Segments(tmp_path, on_loss=losses.note)
    yield made
    made.close()


def helpers(networks: Segments) -> set[int]:
    return {each._keeper.pid for each in networks._segments.values()}


def test_network_lasts_from_its_first_server_to_its_last(networks: Segments) -> None:
    with networks.wired(spec("web", port(5))) as web:
        before = helpers(networks)
        with networks.wired(spec("db", port(6))) as db:
            assert helpers(networks) == before
            assert web.name == db.name == "networks"
            assert db.reason == 'the server is on "private" (10.0.0.6)'
        assert helpers(networks) == before
        # The address of a removed server is free.
        with networks.wired(spec("another", port(6))):
            pass
    assert helpers(networks) == set()
    assert not Path(f"/proc/{before.pop()}").exists()


def test_server_has_an_interface_and_services_for_each_port(networks: Segments) -> None:
    with networks.wired(spec("db", port(6), port(6, network=1))) as link:
        assert isinstance(link, Cables)
        assert link.macs == ("fa:16:3e:00:00:06", "fa:16:3e:00:01:06")
        assert [set(each) for each in link.interface_listeners] == [set(PORTS)] * 2
        assert len({each[80].fileno() for each in link.interface_listeners}) == 2
        cards, ends = link.plug("", first=13)
        with ExitStack() as stack:
            for end in ends:
                stack.enter_context(end)
            assert [(card.mac, card.netdev) for card in cards] == [
                ("fa:16:3e:00:00:06", "dgram,local.type=fd,local.str=13"),
                ("fa:16:3e:00:01:06", "dgram,local.type=fd,local.str=14"),
            ]
            assert {end.type for end in ends} == {socket.SOCK_DGRAM}
        assert len(helpers(networks)) == 2


def test_failed_server_leaves_no_network(networks: Segments) -> None:
    with pytest.raises(UsageError, match="is not the MAC address"):
        networks.wired(spec("web", port(5), port(5, network=1, mac="odd"))).__enter__()
    assert helpers(networks) == set()


IMPOSSIBLE = (
    (spec("db", port(5)), r'MAC address "fa:16:3e:00:00:05" is taken on "private"'),
    (
        spec("db", port(6, addresses=(PortAddress("10.0.0.5", "s", "10.0.0.0/24"),))),
        r'"10\.0\.0\.5" is taken',
    ),
    (
        spec("db", port(6, addresses=())),
        'the server "db" has no address on the network "private"',
    ),
    *(
        (
            spec("db", port(6, addresses=(PortAddress("fd00::6", "s", "fd00::/64", **modes),))),
            f'fd00::/64 of the server "db" has the ipv6_ra_mode "{router}" and the '
            f'ipv6_address_mode "{address}"',
        )
        for modes, router, address in (
            ({"ipv6_address_mode": "slaac"}, "none", "slaac"),
            ({"ipv6_ra_mode": "dhcpv6-stateful"}, "dhcpv6-stateful", "none"),
        )
    ),
    (
        spec("db", port(6, addresses=(PortAddress("10.0.9.6", "t", "10.0.0.0/16"),))),
        r'the network "private" has the addresses 10\.0\.0\.0/24 already, which 10\.0\.0\.0/16 '
        "overlaps",
    ),
    (spec("db", *(port(6, network=n) for n in range(9))), "has 9 ports, and at most 8"),
)


def test_impossible_ports_are_refused(networks: Segments) -> None:
    with networks.wired(spec("web", port(5))):
        for server, sentence in IMPOSSIBLE:
            with pytest.raises(UsageError, match=sentence):
                networks.wired(server).__enter__()
            assert len(helpers(networks)) == 1


def test_dhcp_options_follow_the_port() -> None:
    address = PortAddress(
        "10.0.0.5",
        "s",
        "10.0.0.0/24",
        gateway="10.0.0.1",
        host_routes=(("10.9.0.0/16", "10.0.0.9"), ("169.254.169.254/32", "10.0.0.1")),
        name_servers=("10.0.0.3",),
        dhcp_server="10.0.0.2",
    )
    modes = {"ipv6_ra_mode": "slaac", "ipv6_address_mode": "slaac"}
    six = PortAddress("fd00::5", "t", "fd00::/64", **modes)
    made = port(5, addresses=(six, address), domain="example.org", mtu=1400)
    first, subnet = subnets_of(spec("web", made), made)
    assert (first.network, first.ipv6_mode) == (IPv6Network("fd00::/64"), "slaac")
    # The last address, as the subnet has no DHCP server of Neutron's.
    assert str(first.server) == "fd00::ffff:ffff:ffff:fffe"
    assert subnet.server == IPv4Address("10.0.0.2")
    assert subnet.gateway == IPv4Address("10.0.0.1")
    assert [(str(to), str(by)) for to, by in subnet.routes] == [("10.9.0.0/16", "10.0.0.9")]
    assert subnet.name_servers == (IPv4Address("10.0.0.3"),)
    assert (subnet.domain, subnet.dhcp, subnet.mtu) == ("example.org", True, 1400)


def test_network_has_the_subnets_of_its_servers(networks: Segments) -> None:
    other = PortAddress("10.9.0.6", "t", "10.9.0.0/24", gateway="10.9.0.1", dhcp_server="10.9.0.2")
    first = PortAddress("10.0.0.6", "s", "10.0.0.0/24", dhcp_server="10.0.0.2")
    both = (other, first, PortAddress("10.9.0.7", "t", "10.9.0.0/24", dhcp_server="10.9.0.2"))
    networks.route([RouterSpec("r", "r", (RouterInterface("network-0", MAC, "10.9.0.1"),))])
    with networks.wired(spec("web", port(5))):
        (segment,) = networks._segments.values()
        assert [str(each.network) for each in segment.subnets] == ["10.0.0.0/24"]
        assert not any(each.router for each in segment.ports.values())
        with networks.wired(spec("db", port(6, addresses=both))) as db:
            assert isinstance(db, Cables)
            assert [str(each) for each in db.cables[0].addresses] == [
                *("10.9.0.6", "10.0.0.6", "10.9.0.7")
            ]
            assert [str(each.server) for each in segment.subnets] == ["10.0.0.2", "10.9.0.2"]
            assert any(each.router for each in segment.ports.values())


def test_services_get_a_free_address_without_dhcp(networks: Segments) -> None:
    last = PortAddress("10.0.0.254", "s", "10.0.0.0/24", gateway="10.0.0.253", enable_dhcp=False)
    made = port(6, addresses=(last,))
    assert subnets_of(spec("db", made), made)[0].server == IPv4Address("10.0.0.252")
    with networks.wired(spec("db", made)) as link:
        assert link.macs == (made.mac,)


def test_network_that_ends_by_itself_is_reported(networks: Segments, losses: Losses) -> None:
    with networks.wired(spec("web", port(5))):
        made = next(iter(networks._segments.values()))
        assert made._server is not None
        made._server.kill()
        assert losses.came.wait(60)
    assert 'the DHCP server of the network "private" ended with -9' in str(losses[0])
    # The next server has a new one.
    with networks.wired(spec("web", port(5))):
        assert len(losses) == 1


@pytest.fixture
def without_dnsmasq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr(segment_module, "SYSTEM_PROGRAMS", str(tools))


def test_host_without_networks_wires_isolated_servers(
    networks: Segments, without_dnsmasq: None
) -> None:
    with networks.wired(spec("web", port(5))) as web:
        assert web.name in ("namespace", "guestfwd")
        assert 'no networks between servers: the program "ip" was not found' in web.reason
        with networks.wired(spec("log", port(7, network=1))) as log:
            assert log.name == web.name
        with pytest.raises(HostError) as raised:
            networks.wired(spec("db", port(6), port(6, network=1))).__enter__()
        assert raised.value.message == (
            'the server "db" would share the network "private" with another, and on this host '
            'servers cannot reach each other: the program "ip" was not found in PATH'
        )
        six = port(6, network=2, addresses=(PortAddress("fd00::6", "s", "fd00::/64"),))
        with pytest.raises(HostError) as raised:
            networks.wired(spec("six", six)).__enter__()
        assert raised.value.message == (
            f'the server "six" would be on the network "{six.network_name}" by IPv6 alone, and on '
            'this host a server has IPv4 only: the program "ip" was not found in PATH'
        )
    with networks.wired(spec("db", port(6))) as db:
        assert db.name == web.name
