"""The positions of networks, servers and addresses in the picture."""

from __future__ import annotations

from hotplate.events.kinds import BootImage, ServerBoot
from hotplate.events.topology import Topology, TopologyRouter
from hotplate.report import html, picture


def port(network: int, address: str) -> dict[str, object]:
    return {
        "network_id": f"network-{network}",
        "network": f"lan-{network}",
        "cidr": f"10.0.{network}.0/24",
        "addresses": [address],
    }


def test_server_hangs_from_its_networks():
    drawn = Topology()
    drawn.add("1", "web", [port(0, "10.0.0.5")])
    drawn.add("2", "a-database-with-a-rather-long-name", [port(0, "10.0.0.6"), port(1, "10.0.1.6")])
    drawn.add("3", "alone", [])
    drawing = picture.draw_networks(drawn)
    lan_0, lan_1 = drawing.lines
    assert lan_0.label == "lan-0 10.0.0.0/24"
    web, database, alone = drawing.boxes
    assert (database.label, database.title) == (
        "a-database-with-a-rathe…",
        "a-database-with-a-rather-long-name",
    )
    hung = {each.label: each for each in drawing.cables}
    assert {label: each.top for label, each in hung.items()} == {
        "10.0.0.5": lan_0.y,
        "10.0.0.6": lan_0.y,
        "10.0.1.6": lan_1.y,
    }
    for label, box in (("10.0.0.5", web), ("10.0.0.6", database), ("10.0.1.6", database)):
        assert box.x < hung[label].x < box.x + box.width
    assert lan_0.y < lan_1.y < drawing.base < drawing.height
    label = picture.BOLD * len(lan_0.label)
    assert alone.x + alone.width < drawing.width - label
    assert drawing.more == ""


def test_server_shows_its_image_when_there_are_several():
    drawn = Topology()
    drawn.add("1", "web", [port(0, "10.0.0.5")])
    drawn.add("2", "db", [port(0, "10.0.0.6")])
    plain = picture.draw_networks(drawn)
    drawn.images["2"] = "postgres-on-a-large-distribution"
    drawing = picture.draw_networks(drawn)
    assert [each.note for each in drawing.boxes] == ["", "postgres-on-a-large-dis…"]
    assert drawing.box > plain.box
    assert drawing.height > plain.height


def test_router_hangs_from_the_networks_that_it_connects():
    drawn = Topology(routers=[TopologyRouter("idle", {"other": "10.9.0.1"})])
    drawn.add("1", "web", [port(0, "10.0.0.5")])
    drawn.add("2", "db", [port(1, "10.0.1.6")])
    drawn.routers.append(TopologyRouter("edge", {"network-0": "10.0.0.1", "network-1": "10.0.1.1"}))
    drawing = picture.draw_networks(drawn)
    assert [(each.label, each.kind) for each in drawing.boxes] == [
        ("web", "server"),
        ("db", "server"),
        ("edge", "router"),
    ]
    box = drawing.boxes[-1]
    hung = [each for each in drawing.cables if box.x < each.x < box.x + box.width]
    assert [(each.label, each.top) for each in hung] == [
        ("10.0.0.1", drawing.lines[0].y),
        ("10.0.1.1", drawing.lines[1].y),
    ]


def test_topology_without_network_has_no_picture():
    drawn = Topology()
    drawn.add("1", "web", [])
    assert picture.draw_networks(drawn) is None


def test_large_topology_is_bounded_and_counted():
    drawn = Topology()
    for number in range(30):
        drawn.add(str(number), f"web-{number}", [port(number, f"10.0.{number}.5")])
    drawing = picture.draw_networks(drawn)
    assert (len(drawing.boxes), len(drawing.lines)) == (24, 24)
    assert drawing.more == "6 servers and 6 networks"


def test_topology_is_part_of_the_report(passed):
    passed.events.add(ServerBoot(name="<b>web", ports=[port(0, "10.0.0.5")]), server="1")
    passed.events.add(BootImage("<i>debian"), server="1")
    verdict = passed.result("CREATE_COMPLETE", image="a.qcow2", facts={})
    text = html.report(verdict, passed.events)
    svg = text[text.index('<svg class="topology"') :]
    svg = svg[: svg.index("</svg>")]
    assert "lan-0 10.0.0.0/24" in svg
    assert ">10.0.0.5<" in svg
    assert "&lt;b&gt;web" in svg
    assert "&lt;i&gt;debian" in svg
    assert "<b>" not in svg
    assert "topology" not in html.report(verdict, []).split("</style>")[1]
