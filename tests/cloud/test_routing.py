"""Neutron's routers are reported to the compute; tests/testbed tests their packets."""

from __future__ import annotations

from typing import Any

import pytest
from neutronclient.v2_0 import client as neutron_client
from test_clients import owner_session

from hotplate.cloud.nova.compute import RouterInterface


@pytest.fixture(scope="module")
def neutron(cloud: Any) -> Any:
    return neutron_client.Client(session=owner_session(cloud))


@pytest.fixture(scope="module")
def subnets(neutron: Any) -> list[Any]:
    """Create subnets of two networks: 10.6.0.0/24 and an IPv6 one, and 10.6.1.0/24."""
    made = []
    for number in (0, 1):
        network = neutron.create_network({"network": {"name": f"n{number}"}})["network"]
        body = {"network_id": network["id"], "ip_version": 4, "cidr": f"10.6.{number}.0/24"}
        made.append(neutron.create_subnet({"subnet": body})["subnet"])
    six = {"network_id": made[0]["network_id"], "ip_version": 6, "cidr": "fd00:6::/64"}
    return [*made, neutron.create_subnet({"subnet": six})["subnet"]]


def test_router_changes_are_reported(neutron: Any, compute: Any, subnets: list[Any]) -> None:
    router = neutron.create_router({"router": {"name": "between"}})["router"]
    for subnet in subnets:
        neutron.add_interface_router(router["id"], {"subnet_id": subnet["id"]})
    (seen,) = compute.routers
    assert (seen.id, seen.name, seen.routes) == (router["id"], "between", ())
    ports = neutron.list_ports(device_id=router["id"])["ports"]
    macs = {port["fixed_ips"][0]["ip_address"]: port["mac_address"] for port in ports}
    assert seen.interfaces == tuple(
        RouterInterface(subnet["network_id"], macs[address], address)
        for subnet, address in zip(subnets[:2], ("10.6.0.1", "10.6.1.1"), strict=True)
    )
    route = {"destination": "192.168.9.0/24", "nexthop": "10.6.1.9"}
    neutron.add_extra_routes_to_router(router["id"], {"router": {"routes": [route]}})
    assert compute.routers[0].routes == (("192.168.9.0/24", "10.6.1.9"),)
    neutron.update_router(router["id"], {"router": {"routes": []}})
    neutron.update_router(router["id"], {"router": {"admin_state_up": False}})
    assert compute.routers == ()
    neutron.update_router(router["id"], {"router": {"admin_state_up": True}})
    assert compute.routers == (seen,)
    neutron.remove_interface_router(router["id"], {"subnet_id": subnets[1]["id"]})
    assert compute.routers[0].interfaces == seen.interfaces[:1]
    for subnet in (subnets[0], subnets[2]):
        neutron.remove_interface_router(router["id"], {"subnet_id": subnet["id"]})
    neutron.delete_router(router["id"])
    assert compute.routers == ()


def test_unchanged_routing_is_not_reported(neutron: Any, compute: Any) -> None:
    router = neutron.create_router({"router": {}})["router"]
    compute.routers = None
    neutron.update_router(router["id"], {"router": {"description": "another"}})
    assert compute.routers is None
    neutron.delete_router(router["id"])
    assert compute.routers == ()
