"""A stack of two running servers, by Heat's own plug-ins: tiny guests on its networks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tiny
import tiny_guest

from hotplate.events.log import EventLog
from hotplate.events.topology import of_events
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import GuestDeadline, retry

pytestmark = [
    pytest.mark.boots,
    pytest.mark.network,
    pytest.mark.tool("qemu-system-x86_64"),
    pytest.mark.tool("dnsmasq"),
]
BOOT_SECONDS = 150
#: An address outside the subnets that a network gets by default.
FAR = "172.20.7.9"


@pytest.fixture(scope="module")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    directory = tmp_path_factory.mktemp("testbed")
    image, settings = tiny.image(directory), tiny.settings(directory)
    with Testbed(image, settings=settings, directory=directory, events=EventLog()) as made:
        yield made


def template(*networks: dict[str, str]) -> Template:
    """Return two servers on an assumed network, the second in another subnet of it.

    :param networks: additional networks of the first server.
    """

    def server(name: str, *on: dict[str, str]) -> dict[str, Any]:
        properties = {"name": name, "image": "tiny", "flavor": "tiny", "networks": [*on]}
        return {
            "type": "OS::Nova::Server",
            "properties": {**properties, "user_data_format": "RAW"},
        }

    web = server("web", {"network": "taken-for-granted"}, *networks)
    db = server("db", {"network": "taken-for-granted", "fixed_ip": FAR})
    resources = {
        "web": web,
        "db": {**db, "depends_on": "web"},
        "more": {"type": "OS::Neutron::Net", "properties": {"name": "more"}},
        "its": {
            "type": "OS::Neutron::Subnet",
            "properties": {"network": {"get_resource": "more"}, "cidr": "10.71.0.0/24"},
        },
    }
    outputs = {name: {"value": {"get_attr": [name, "first_address"]}} for name in ("web", "db")}
    made = {"heat_template_version": "2018-08-31", "resources": resources, "outputs": outputs}
    return Template(source="a test", template=made)


def named(testbed: Testbed, name: str) -> Server:
    (server,) = (each for each in testbed.servers if each.spec.name == name)
    server.nonce = server._boot_nonce = tiny_guest.NONCE
    server.shell(seconds=BOOT_SECONDS)
    return server


def run(server: Server, command: str) -> str:
    return server.shell().run(command).text


@pytest.fixture(scope="module")
def stack(testbed: Testbed) -> Stack:
    made = Stack.create(testbed.cloud, template(), name="pair")
    assert made.wait().status == "CREATE_COMPLETE", made.reason
    return made


def pings(server: Server, address: str) -> bool:
    return " 0% packet loss" in run(server, f"ping -c 3 -W 10 {address}")


def lead_to_each_other(web: Server, db: Server) -> str:
    """Make each look for the other on its link; return the first one's address."""
    near = web.spec.ports[0].addresses[0].address
    run(web, f"ip route replace {FAR}/32 dev eth0")
    run(db, f"ip route replace {near}/32 dev eth0")
    return near


def test_assumed_network_has_two_subnets_and_two_servers(testbed: Testbed, stack: Stack) -> None:
    web, db = named(testbed, "web"), named(testbed, "db")
    near = stack.outputs["web"]
    assert stack.outputs["db"] == FAR
    assert f" {near}/" in run(web, "ip -4 -o address")
    assert f" {FAR}/" in run(db, "ip -4 -o address")
    (network,) = of_events(testbed.events).networks.values()
    assert len(network.cidrs) == 2
    for server in (web, db):
        answer = run(server, "wget -q -O - http://169.254.169.254/openstack/latest/meta_data.json")
        assert server.spec.id in answer
    # dnsmasq reads its files asynchronously.
    retry(
        lambda _: FAR in run(web, "nslookup db.novalocal"),
        GuestDeadline(60, "the name"),
        every=0.5,
    )
    # There is no router between the subnets: addresses on the link are reached on the link.
    assert not pings(web, FAR)
    lead_to_each_other(web, db)
    assert pings(web, FAR)
    assert pings(db, near)


def test_update_gives_a_running_server_another_network(testbed: Testbed, stack: Stack) -> None:
    pid = named(testbed, "web").machine.pid
    assert stack.update(template({"network": "more"})).wait().status == "UPDATE_COMPLETE", (
        stack.reason
    )
    web = named(testbed, "web")
    assert web.machine.pid == pid
    (port,) = (each for each in web.spec.ports if each.network_name == "more")
    retry(
        lambda _: port.mac in run(web, "cat /sys/class/net/*/address"),
        GuestDeadline(60, "the guest to see its interface"),
        every=0.5,
    )
    run(web, "ip link set eth1 up; udhcpc -q -n -t 50 -T 1 -i eth1 -s /dhcp")
    assert f"{port.addresses[0].address}/24" in run(web, "ip -4 -o address").split()
    assert "more" in {each.name for each in of_events(testbed.events).networks.values()}

    assert stack.update(template()).wait().status == "UPDATE_COMPLETE", stack.reason
    assert port.mac not in run(web, "cat /sys/class/net/*/address")
    assert web.machine.pid == pid


def test_stack_is_suspended_resumed_and_deleted(testbed: Testbed, stack: Stack) -> None:
    web, db = named(testbed, "web"), named(testbed, "db")
    near = lead_to_each_other(web, db)
    assert stack.suspend().wait().status == "SUSPEND_COMPLETE"
    assert stack.resume().wait().status == "RESUME_COMPLETE"
    assert pings(web, FAR)
    assert pings(db, near)
    assert stack.delete().wait().status == "DELETE_COMPLETE"
    assert testbed.servers == []
