"""Servers on networks as clouds have them: IPv6, static addresses, an MTU, two interfaces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hotplate.image.inspect import Image
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import load
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import GuestDeadline, retry

pytestmark = [
    pytest.mark.boots,
    pytest.mark.tool("dnsmasq"),
    pytest.mark.xdist_group("cloud_networks"),
]
SECONDS = 900
TEMPLATES = Path(__file__).parent / "templates"


@pytest.fixture(scope="module")
def testbed(testbed_of, all_hooks_trixie, all_hooks_bookworm) -> Testbed:
    others = {"trixie": Image.open(all_hooks_trixie), "bookworm": Image.open(all_hooks_bookworm)}
    return testbed_of(all_hooks_trixie, others=others)


@pytest.fixture(scope="module")
def servers(testbed: Testbed) -> Iterator[dict[str, Server]]:
    template = load(TEMPLATES / "cloud-networks.yaml")
    stack = Stack.create(testbed.cloud, template, name="networks").wait(seconds=SECONDS)
    assert stack.status == "CREATE_COMPLETE", stack.reason
    made = {each.spec.name: each for each in testbed.servers}
    for server in made.values():
        run(server, "cloud-init status --wait || true", seconds=SECONDS)
    yield made
    stack.delete().wait(seconds=SECONDS)


def run(server: Server, command: str, *, seconds: int = 600) -> str:
    return server.shell(seconds=SECONDS).run(command, timeout=seconds).text


def addresses(server: Server, network: str) -> list[str]:
    (port,) = (each for each in server.spec.ports if each.network_name == network)
    return [each.address for each in port.addresses]


def page(server: Server, address: str) -> str:
    """Return the page that a server gets at an address."""
    host = f"[{address}]" if ":" in address else address
    command = f"curl -sS -m 10 --retry 10 --retry-connrefused -g http://{host}:8099/page 2>&1"
    return run(server, command)


def metadata(server: Server) -> str:
    """Return the answer of the metadata service over IPv6."""
    device = run(server, "ls /sys/class/net | grep -vx lo | head -1").strip()
    url = f"http://[fe80::a9fe:a9fe%25{device}]/openstack/latest/meta_data.json"
    return run(server, f"curl -sS -m 60 -g '{url}' 2>&1")


def test_server_with_ipv6_alone_has_its_address_and_metadata(servers: dict[str, Server]) -> None:
    for name, kind in (("slaac", "64"), ("stateful", "128")):
        server = servers[name]
        (address,) = addresses(server, name)
        assert f" {address}/{kind} " in run(server, "ip -6 -o address")
        assert " inet " not in run(server, "ip -4 -o address show scope global")
        assert server.spec.id in metadata(server)
        assert " via fe80::" in run(server, "ip -6 route")


def test_ipv6_networks_reach_each_other_over_their_router(servers: dict[str, Server]) -> None:
    for client, name in (("slaac", "stateful"), ("stateful", "slaac")):
        assert page(servers[client], addresses(servers[name], name)[0]) == name


def test_servers_on_one_network_reach_each_other_over_ipv6(servers: dict[str, Server]) -> None:
    for client, name in (("slaac", "static"), ("static", "slaac")):
        assert page(servers[client], addresses(servers[name], "slaac")[0]) == name


def test_config_drive_gives_static_addresses_of_both_versions(servers: dict[str, Server]) -> None:
    for client, name in (("static", "neighbour"), ("neighbour", "static")):
        ipv4, ipv6 = addresses(servers[name], "static")
        assert (ipv4[:6], ipv6[:6]) == ("10.30.", "fd00:3")
        assert page(servers[client], ipv4) == name
        assert page(servers[client], ipv6) == name


def test_mtu_of_the_network_is_that_of_the_interface(servers: dict[str, Server]) -> None:
    for name, network, mtu in (
        ("slaac", "slaac", 1400),
        ("static", "slaac", 1400),
        ("static", "static", 1300),
        ("stateful", "stateful", 1450),
    ):
        server = servers[name]
        (port,) = (each for each in server.spec.ports if each.network_name == network)
        device = f"$(basename $(dirname $(grep -l {port.mac} /sys/class/net/*/address)))"
        shown = run(server, f"cat /sys/class/net/{device}/mtu /proc/sys/net/ipv6/conf/{device}/mtu")
        assert str(mtu) in shown.split()


def test_each_address_answers_when_it_is_asked_for(servers: dict[str, Server]) -> None:
    for server in servers.values():
        asked = server.links.ask()
        assert len(asked) == sum(len(port.addresses) for port in server.spec.ports)
        retry(
            lambda _, server=server: all(server.links.ask().values()),
            GuestDeadline(120, "the answers"),
            every=0.5,
        )
