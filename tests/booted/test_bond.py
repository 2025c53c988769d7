"""A bond of two ports and a VLAN on it, as the ``network_data.json`` of bare metal has them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotplate.cloud.nova.metadata import check_network_data
from hotplate.cloud.options import CloudOptions
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import load
from hotplate.testbed.server import Server

pytestmark = [
    pytest.mark.boots,
    # The kernel of a container is the host's, which may have neither bonds nor VLANs.
    pytest.mark.qemu,
    pytest.mark.long,
    pytest.mark.tool("dnsmasq"),
    pytest.mark.xdist_group("bond"),
]
SECONDS = 900
#: cloud-init makes the links of ifupdown's /etc/network/interfaces, but none for systemd-networkd.
PACKAGES = "ifupdown,ifenslave,iputils-ping"
#: The servers' addresses in the VLAN, which Neutron does not know.
BONDED, TAGGED = "10.77.0.10", "10.77.0.20"


def vlan(below: str, address: str) -> tuple[dict[str, object], dict[str, object]]:
    """Return the link and the network of VLAN 7 on another link."""
    return (
        {"id": "vlan7", "type": "vlan", "vlan_link": below, "vlan_id": 7},
        {
            "id": "network0",
            "network_id": "n",
            "link": "vlan7",
            "type": "ipv4",
            "ip_address": address,
            "netmask": "255.255.255.0",
            "routes": [],
        },
    )


def network_data() -> str:
    """Return the text of a file for ``--network-data``."""
    a, b = ({"id": each, "type": "phy"} for each in "ab")
    bond = {
        "id": "bond0",
        "type": "bond",
        "bond_links": ["a", "b"],
        "bond_mode": "active-backup",
        # Without it the bond stays with a port that has lost its carrier.
        "bond_miimon": 100,
    }
    on_bond, on_port = vlan("bond0", BONDED), vlan("a", TAGGED)
    return json.dumps(
        {
            "bonded": {"links": [a, b, bond, on_bond[0]], "networks": [on_bond[1]]},
            "tagged": {"links": [a, on_port[0]], "networks": [on_port[1]]},
        }
    )


@pytest.fixture(scope="module")
def servers(images, testbed_of) -> Iterator[dict[str, Server]]:
    image = images.get("trixie", "partition", "script", "--package", PACKAGES)
    data = check_network_data(network_data())
    testbed = testbed_of(image, options=CloudOptions(own_network_data=data))
    template = load(Path(__file__).parent / "templates" / "bond.yaml")
    stack = Stack.create(testbed.cloud, template, name="bond").wait(seconds=SECONDS)
    assert stack.status == "CREATE_COMPLETE", stack.reason
    made = {each.name: each for each in testbed.servers}
    for server in made.values():
        run(server, "cloud-init status --wait || true", seconds=SECONDS)
    yield made
    stack.delete().wait(seconds=SECONDS)


def run(server: Server, command: str, *, seconds: int = 600) -> str:
    return server.shell(seconds=SECONDS).run(command, timeout=seconds).text


def answers(server: Server, address: str, *, seconds: int) -> bool:
    """Return whether an address answers a server within this time."""
    shown = run(server, f"ping -c 1 -w {seconds} {address} 2>&1", seconds=seconds + 60)
    return " 1 received" in shown


def test_guest_has_the_bond_and_the_vlan_on_it(servers: dict[str, Server]) -> None:
    bonded = servers["bonded"]
    bond = run(bonded, "cat /proc/net/bonding/bond0")
    assert "fault-tolerance (active-backup)" in bond
    macs = [port.mac for port in bonded.spec.ports]
    assert [line[-17:] for line in bond.splitlines() if "Permanent HW addr" in line] == macs
    link = run(bonded, "ip -d -o link show bond0.7")
    assert "bond0.7@bond0: " in link
    assert f"link/ether {macs[0]} " in link
    assert "vlan protocol 802.1Q id 7 " in link
    assert f" {BONDED}/24 " in run(bonded, "ip -4 -o address show bond0.7")


def test_vlan_is_reached_over_either_port_of_the_bond(servers: dict[str, Server]) -> None:
    bonded, tagged = servers["bonded"], servers["tagged"]
    assert answers(tagged, BONDED, seconds=300)
    for cut, left in ((0, 1), (1, 0)):
        # The port that was cut first is up before the other one is cut.
        bonded.machine.set_link(up=True, cards=[left])
        bonded.machine.set_link(up=False, cards=[cut])
        assert answers(tagged, BONDED, seconds=300)
    bonded.machine.set_link(up=False)
    assert not answers(tagged, BONDED, seconds=5)
    bonded.machine.set_link(up=True)
    assert answers(tagged, BONDED, seconds=300)
