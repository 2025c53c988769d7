"""The topology of a run, derived from its events."""

from __future__ import annotations

from hotplate.events.kinds import BootImage, InterfaceChange, RouterChange, ServerBoot
from hotplate.events.log import EventLog
from hotplate.events.topology import TopologyRouter, of_events


def port(network: int, *addresses: str) -> dict[str, object]:
    return {
        "network_id": f"network-{network}",
        "network": "lan",
        "cidr": f"10.0.{network}.0/24",
        "addresses": list(addresses),
    }


def test_servers_are_listed_by_network():
    events = EventLog()
    events.add(ServerBoot(name="web", ports=[port(0, "10.0.0.5", "10.0.0.6")]), server="1")
    events.add(ServerBoot(name="web", ports=[port(0, "10.0.0.7"), port(1, "10.0.1.7")]), server="2")
    events.add(ServerBoot(name="alone"), server="3")
    topology = of_events(events)
    assert str(topology) == (
        "network lan 10.0.0.0/24: web 10.0.0.5 10.0.0.6, web 10.0.0.7\n"
        "network lan 10.0.1.0/24: web 10.0.1.7"
    )
    assert [name for _, name in topology.servers] == ["web", "web", "alone"]


def test_network_has_all_subnets_of_its_servers():
    events = EventLog()
    for number in (0, 1, 0):
        address = f"10.0.{number}.5"
        each = {**port(number, address), "network_id": "n"}
        events.add(ServerBoot(name="web", ports=[each]), server=f"{len(events)}")
    assert str(of_events(events)) == (
        "network lan 10.0.0.0/24 10.0.1.0/24: web 10.0.0.5, web 10.0.1.5, web 10.0.0.5"
    )


def test_image_is_named_when_there_are_several():
    events = EventLog()
    events.add(ServerBoot(name="web", ports=[port(0, "10.0.0.5")]), server="1")
    events.add(BootImage("debian"), server="1")
    events.add(ServerBoot(name="db", ports=[port(0, "10.0.0.6")]), server="2")
    assert str(of_events(events)) == "network lan 10.0.0.0/24: web (debian) 10.0.0.5, db 10.0.0.6"


def test_topology_follows_added_and_removed_interfaces():
    events = EventLog()
    events.add(ServerBoot(name="web", ports=[port(0, "10.0.0.5")]), server="1")
    events.add(InterfaceChange(ports=[port(0, "10.0.0.5"), port(1, "10.0.1.5")]), server="1")
    assert str(of_events(events)) == (
        "network lan 10.0.0.0/24: web 10.0.0.5\nnetwork lan 10.0.1.0/24: web 10.0.1.5"
    )
    events.add(InterfaceChange(ports=[port(1, "10.0.1.5")]), server="1")
    assert str(of_events(events)) == "network lan 10.0.1.0/24: web 10.0.1.5"


def test_rebuilt_server_is_listed_once():
    events = EventLog()
    events.add(ServerBoot(name="web", ports=[port(0, "10.0.0.5")]), server="1")
    events.add(ServerBoot(name="front", ports=[port(0, "10.0.0.5")]), server="1")
    assert str(of_events(events)) == "network lan 10.0.0.0/24: front 10.0.0.5"


def test_topology_without_ports_is_empty():
    events = EventLog()
    events.add(ServerBoot(name="web"), server="1")
    assert str(of_events(events)) == ""


def test_routers_are_those_of_the_last_change():
    events = EventLog()
    for name in ("old", "edge"):
        events.add(
            RouterChange(
                [{"name": name, "interfaces": [{"network_id": "n", "address": "10.0.0.1"}]}]
            )
        )
    assert of_events(events).routers == [TopologyRouter("edge", {"n": "10.0.0.1"})]
    events.add(RouterChange([]))
    assert of_events(events).routers == []
