"""Routers between the networks of a testbed's servers: real routers, and no machines.

Forwarding is tested in tests/network/test_router.py, and with guests in tests/booted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import pytest
import tiny_disk
from ports import port, router, spec

from hotplate.errors import HostError, MachineLostError, UsageError
from hotplate.events.kinds import StartFault
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.settings import AcceleratorChoice, Settings
from hotplate.testbed.compute import LocalCompute
from hotplate.testbed.segments import Segments

pytestmark = [pytest.mark.tool("dnsmasq"), pytest.mark.tool("ip")]


@pytest.fixture
def losses() -> Queue[str]:
    return Queue()


@pytest.fixture
def networks(tmp_path: Path, losses: Queue[str]) -> Iterator[Segments]:
    made = Segments(tmp_path, on_loss=lambda error: losses.put(error.message))
    yield made
    made.close()


def on(networks: Segments) -> dict[str, set[str]]:
    """Return the networks of each router."""
    return {
        router_id: {segment.name for segment, _ in running.attached.values()}
        for router_id, running in networks._routers._running.items()
    }


def test_router_follows_its_networks(networks: Segments) -> None:
    networks.route([router(0, 1)])
    assert on(networks) == {}
    with networks.wired(spec("web", port(5))):
        assert on(networks) == {"router": {"private"}}
        with networks.wired(spec("db", port(6, network=1))):
            assert on(networks) == {"router": {"private", "backend"}}
            with networks.wired(spec("other", port(6, network=2))):
                assert on(networks) == {"router": {"private", "backend"}}
        assert on(networks) == {"router": {"private"}}
    assert on(networks) == {}
    assert networks._segments == {}


def test_routers_change_while_servers_run(networks: Segments) -> None:
    with networks.wired(spec("db", port(6), port(6, network=1))):
        networks.route([router(0, 1), router(0, name="second", number=3)])
        assert on(networks) == {"router": {"private", "backend"}, "second": {"private"}}
        networks.route([router(1)])
        assert on(networks) == {"router": {"backend"}}
        helper = networks._routers._running["router"].router._keeper.pid
        networks.route([])
        assert on(networks) == {}
        assert not Path(f"/proc/{helper}").exists()
        assert {len(each.ports) for each in networks._segments.values()} == {1}


def test_routes_need_a_next_hop_on_a_running_network(networks: Segments) -> None:
    routes = (("10.9.0.0/24", "10.0.0.5"), ("10.8.0.0/24", "10.0.1.5"))
    networks.route([router(0, 1, routes=routes)])
    with networks.wired(spec("web", port(5))):
        running = networks._routers._running["router"].router
        assert [str(to) for to, _ in running.routes] == ["10.9.0.0/24"]
        with networks.wired(spec("db", port(6, network=1))):
            assert [str(to) for to, _ in running.routes] == ["10.9.0.0/24", "10.8.0.0/24"]
        assert [str(to) for to, _ in running.routes] == ["10.9.0.0/24"]


def test_default_route_needs_a_router_at_the_gateway(networks: Segments) -> None:
    """Nobody has the gateway of an external network: packets to there are refused at once."""
    out = router(0, name="out", number=3, routes=(("0.0.0.0/0", "10.0.0.1"),))
    networks.route([out])
    with networks.wired(spec("web", port(5))):
        running = networks._routers._running["out"].router
        assert running.routes == ()
        networks.route([router(0), out])
        assert [str(by) for _, by in running.routes] == ["10.0.0.1"]


def test_impossible_router_refuses_the_server_and_leaves_no_network(networks: Segments) -> None:
    networks.route([router(0, number=2)])
    with pytest.raises(UsageError, match=r'the address "10\.0\.0\.2" is taken on "private"'):
        networks.wired(spec("web", port(5))).__enter__()
    assert networks._segments == {}


def test_killed_router_is_reported_and_its_networks_can_end(
    networks: Segments, losses: Queue[str]
) -> None:
    networks.route([router(0, 1)])
    with networks.wired(spec("web", port(5))):
        helper = networks._routers._running["router"].router._keeper._process
        assert helper is not None
        helper.kill()
        assert losses.get(timeout=60) == (
            'the helper process of the router "router" was killed: its networks are no longer '
            "joined"
        )
        helper.wait(60)
        with pytest.raises(MachineLostError):
            networks.wired(spec("db", port(6, network=1))).__enter__()
    assert networks._segments == {}


def test_router_that_ends_with_its_networks_is_no_loss(
    networks: Segments, losses: Queue[str]
) -> None:
    networks.route([router(0, 1)])
    with networks.wired(spec("web", port(5))):
        helper = networks._routers._running["router"].router._keeper.pid
        watcher = next(each for each in threading.enumerate() if each.name == f"helper-{helper}")
    watcher.join(60)
    assert not watcher.is_alive()
    assert losses.empty()


@pytest.mark.tool("qemu-system-x86_64")
def test_router_failure_is_a_host_fault(
    tmp_path: Path, networks: Segments, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = Image.open(tiny_disk.make(tmp_path / "tiny.raw"))
    settings = Settings(accelerator=AcceleratorChoice.TCG, cache=tmp_path)
    compute = LocalCompute(image, settings=settings, directory=tmp_path, events=EventLog())
    # An isolated server has no router.
    compute.route([router(0)])
    compute.segments = networks

    def refuse(routers: object) -> None:
        raise HostError("there is no room for a router")

    monkeypatch.setattr(networks, "route", refuse)
    compute.route([router(0)])
    assert str(compute.fault) == "there is no room for a router"
    faults = [fault for each in compute.events if (fault := StartFault.of(each))]
    assert [(each.outcome, each.message) for each in faults] == [
        ("host error", "there is no room for a router")
    ]
