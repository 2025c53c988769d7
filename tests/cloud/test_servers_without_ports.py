"""When guests have no ports, Heat reports only addresses that a guest really has."""

from __future__ import annotations

from typing import Any

import pytest
from test_templates import hot


@pytest.fixture(scope="module")
def compute(recording_compute: Any) -> Any:
    recording_compute.networked = False
    return recording_compute


def test_server_has_the_one_address_of_its_machine(cloud: Any, stacks: Any, compute: Any) -> None:
    networks = [{"port": {"get_resource": "port"}}]
    resources = {
        "port": {"type": "OS::Neutron::Port", "properties": {"network": "test-net"}},
        "server": {
            "type": "OS::Nova::Server",
            "properties": {"image": "i", "flavor": "f", "networks": networks},
        },
    }
    paths = {
        "first": ["server", "first_address"],
        "networks": ["server", "networks"],
        "whole": ["server", "addresses"],
    }
    outputs = {name: {"value": {"get_attr": path}} for name, path in paths.items()}
    made = stacks.create(hot(resources, outputs=outputs))
    stacks.wait(made, "CREATE_COMPLETE", seconds=90)
    values = stacks.outputs(made)
    assert values["first"] == "169.254.169.15"
    assert values["networks"]["test-net"] == ["169.254.169.15"]
    assert values["whole"]["test-net"][0]["addr"] == "169.254.169.15"
    port = stacks.client.resources.get(made, "port").physical_resource_id
    assert values["whole"]["test-net"][0]["port"] == port
    (spec,) = compute.specs.values()
    assert spec.ports == ()
    assert "OS::Neutron::Port" in {each.kind for each in cloud.stand_ins(made)}


def routed(name: str, cidr: str, networks: list[dict[str, object]]) -> dict[str, Any]:
    """Return a server on a network that is named ``name`` and has a router to the outside."""
    return {
        "net": {"type": "OS::Neutron::Net", "properties": {"name": name}},
        "subnet": {
            "type": "OS::Neutron::Subnet",
            "properties": {"network": {"get_resource": "net"}, "cidr": cidr},
        },
        "router": {
            "type": "OS::Neutron::Router",
            "properties": {"external_gateway_info": {"network": "public"}},
        },
        # Both ports of the router have no name, so several match "".
        "leg": {
            "type": "OS::Neutron::RouterInterface",
            "properties": {
                "router": {"get_resource": "router"},
                "subnet": {"get_resource": "subnet"},
            },
        },
        "server": {
            "type": "OS::Nova::Server",
            "depends_on": "leg",
            "properties": {"image": "i", "flavor": "f", "networks": networks},
        },
    }


def floating(network: object) -> dict[str, Any]:
    """Return a floating address for the server, by its address on a network."""
    return {
        "ip": {
            "type": "OS::Neutron::FloatingIP",
            "depends_on": "leg",
            "properties": {"floating_network": "public"},
        },
        "association": {
            "type": "OS::Neutron::FloatingIPAssociation",
            "properties": {
                "floatingip_id": {"get_resource": "ip"},
                "port_id": {"get_attr": ["server", "addresses", network, 0, "port"]},
            },
        },
    }


def test_floating_address_is_accepted_without_ports(cloud: Any, stacks: Any) -> None:
    """Heat's own scenario of a signal maps one, by the network of its template."""
    networks = [{"subnet": {"get_resource": "subnet"}}]
    made = stacks.create(hot(routed("outside", "10.100.0.0/16", networks) | floating("outside")))
    stacks.wait(made, "CREATE_COMPLETE", seconds=90)


def test_server_attributes_use_the_networks_of_its_template(
    cloud: Any, stacks: Any, compute: Any
) -> None:
    """Heat lists the ports of a server in Neutron, under the names and ids of their networks."""
    network = {"get_resource": "net"}
    resources = routed("inside", "10.9.0.0/24", [{"network": network}, {"network": "hotplate"}])
    paths = {
        "port": ["server", "addresses", "inside", 0, "port"],
        "subnets": ["server", "addresses", network, 0, "subnets", 0, "cidr"],
        "by_id": ["server", "networks", network, 0],
        "by_name": ["server", "networks", "inside", 0],
        "second": ["server", "networks", "hotplate", 0],
    }
    outputs = {name: {"value": {"get_attr": path}} for name, path in paths.items()}
    made = stacks.create(hot(resources | floating(network), outputs=outputs))
    stacks.wait(made, "CREATE_COMPLETE", seconds=90)
    values = stacks.outputs(made)
    assert values["port"] == stacks.client.resources.get(made, "server").physical_resource_id
    assert values["subnets"] == "10.9.0.0/24"
    assert values["by_id"] == values["by_name"] == values["second"] == "169.254.169.15"
