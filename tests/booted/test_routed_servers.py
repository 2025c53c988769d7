"""Two servers of two images on two networks with a router between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from keystoneauth1 import session
from keystoneauth1.identity import v3
from neutronclient.v2_0 import client as neutron_client

from hotplate.image.inspect import Image
from hotplate.plugin.pool import LocalPlatform
from hotplate.plugin.server import ServerUnderTest
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import load
from hotplate.testbed.testbed import Testbed

pytestmark = [
    pytest.mark.boots,
    pytest.mark.tool("dnsmasq"),
    pytest.mark.xdist_group("routed_servers"),
]
SECONDS = 1800
TEMPLATES = Path(__file__).parent / "templates"


@pytest.fixture(scope="module")
def routed(testbed_of, without_cloud_init, all_hooks_bookworm) -> Iterator[tuple[Testbed, Stack]]:
    others = {"trixie": Image.open(without_cloud_init), "bookworm": Image.open(all_hooks_bookworm)}
    testbed = testbed_of(without_cloud_init, others=others)
    stack = Stack.create(testbed.cloud, load(TEMPLATES / "routed.yaml"), name="routed")
    yield testbed, stack.wait(seconds=SECONDS)
    stack.delete().wait(seconds=SECONDS)


def under_test(testbed: Testbed, name: str) -> ServerUnderTest:
    (server,) = (each for each in testbed.servers if each.spec.name == name)
    return ServerUnderTest(LocalPlatform(testbed, server))


def neutron_of(testbed: Testbed) -> Any:
    owner = testbed.cloud.credentials
    auth = v3.Password(
        auth_url=testbed.cloud.endpoints["keystone"] + "/v3",
        user_id=owner.user_id,
        password=owner.password,
        project_id=owner.project_id,
    )
    return neutron_client.Client(session=session.Session(auth=auth))


def test_servers_on_two_networks_reach_each_other_by_the_router(routed) -> None:
    testbed, stack = routed
    assert stack.status == "CREATE_COMPLETE", stack.reason
    assert stack.outputs["releases"] == ["trixie", "bookworm"]
    assert stack.outputs["page"] == "a page of db"
    web, db = (under_test(testbed, name) for name in ("web", "db"))
    assert "default via 10.20.0.1 " in web.succeed("ip route")
    # No program listens, and web refuses the connection.
    shown = db.run(f"curl -sS -m 60 http://{web.address()}:8099/ 2>&1")
    assert "(7)" in shown.text
    assert [each.kind for each in testbed.cloud.stand_ins("routed")] == ["flavor"]


def test_servers_are_cut_off_without_the_router_interface(routed) -> None:
    testbed, stack = routed
    web, db = (under_test(testbed, name) for name in ("web", "db"))
    neutron = neutron_of(testbed)
    body = {"subnet_id": stack.outputs["back_subnet"]}
    neutron.remove_interface_router(stack.outputs["router"], body)
    assert not web.can_reach(db, 8099, seconds=5)
    neutron.add_interface_router(stack.outputs["router"], body)
    web.retry(lambda _: web.can_reach(db, 8099), "web to reach db again")


def test_forged_source_is_dropped_across_the_router(routed) -> None:
    """Neither a far server's nor the router's address works; metadata stays private."""
    testbed, _ = routed
    web, db = (under_test(testbed, name) for name in ("web", "db"))
    page = f"http://{db.address()}:8099/page"
    nic = web.succeed("ip -o route get 10.20.0.1 | sed 's/.* dev \\([^ ]*\\).*/\\1/'").strip()
    for sender in (db.address(), "10.20.1.9", "10.20.1.1", "10.20.0.9"):
        web.succeed(f"ip address add {sender}/32 dev {nic} noprefixroute")
        try:
            shown = web.succeed(f"curl -sS -m 3 --interface {sender} {page} 2>&1; echo status $?")
            assert shown.rstrip().endswith(("status 7", "status 28")), shown
        finally:
            web.succeed(f"ip address del {sender}/32 dev {nic}")
    for one in (web, db):
        own = one.succeed("curl -sS http://169.254.169.254/openstack/latest/meta_data.json")
        assert one.id in own
