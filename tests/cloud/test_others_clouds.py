"""Templates name resources of their own cloud, and run here unchanged.

The seeds' own cloud has a network "test-net" and a flavor "m1.tiny"; a template cannot say which
of its names are the cloud's.
"""

from __future__ import annotations

from typing import Any

import pytest
from test_templates import hot


def server(**properties: object) -> dict[str, Any]:
    always = {"image": "cirros", "flavor": "m9.odd", "user_data_format": "RAW"}
    return {"type": "OS::Nova::Server", "properties": {**always, **properties}}


def neutron(kind: str, **properties: object) -> dict[str, Any]:
    return {"type": f"OS::Neutron::{kind}", "properties": properties}


OWN_PORT = {"networks": [{"port": {"get_resource": "port"}}]}
RESOURCES: dict[str, dict[str, Any]] = {
    "flavor": {"server": server()},
    "key pair": {"server": server(key_name="mykey")},
    "network": {"server": server(networks=[{"network": "test-net"}])},
    "network by id": {
        "server": server(networks=[{"network": "7a7ae3e3-2f6e-4d53-8f0f-9d8a2f0a3c11"}])
    },
    "address": {"server": server(networks=[{"network": "private", "fixed_ip": "10.11.12.5"}])},
    "subnet": {"server": server(networks=[{"subnet": "my-subnet"}])},
    "security group": {"server": server(security_groups=["default", "web"])},
    "zone": {"server": server(availability_zone="az1", networks=[{"network": "private"}])},
    "port": {
        "port": neutron("Port", network="private", security_groups=["web"]),
        "server": server(**OWN_PORT),
    },
    "port on a subnet": {
        "port": neutron("Port", network="private", fixed_ips=[{"subnet": "private-subnet"}]),
        "server": server(**OWN_PORT),
    },
    "floating address": {
        "port": neutron("Port", network="private"),
        "server": server(**OWN_PORT),
        "address": neutron(
            "FloatingIP", floating_network="ext-net", port_id={"get_resource": "port"}
        ),
    },
    "router": {"router": neutron("Router", external_gateway_info={"network": "ext-net"})},
}


@pytest.mark.parametrize("resources", RESOURCES.values(), ids=list(RESOURCES))
def test_names_of_the_template_s_own_cloud_are_accepted(
    stacks: Any, resources: dict[str, Any]
) -> None:
    stacks.wait(stacks.create(hot(resources)), "CREATE_COMPLETE")
