"""When guests have no ports, Heat reports only addresses that a guest really has."""

from __future__ import annotations

from typing import Any

import pytest
from recording_cloud import attribute, hot, ref, resource


@pytest.fixture(scope="module")
def compute(recording_compute: Any) -> Any:
    recording_compute.networked = False
    return recording_compute


def test_server_has_the_one_address_of_its_machine(cloud: Any, stacks: Any, compute: Any) -> None:
    outputs = {
        "first": attribute("server", "first_address"),
        "networks": attribute("server", "networks"),
        "whole": attribute("server", "addresses"),
    }
    template = hot(
        outputs,
        port=resource("Neutron::Port", network="test-net"),
        server=resource("Nova::Server", image="i", flavor="f", networks=[{"port": ref("port")}]),
    )
    made = stacks.complete(template)
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
        "net": resource("Neutron::Net", name=name),
        "subnet": resource("Neutron::Subnet", network=ref("net"), cidr=cidr),
        "router": resource("Neutron::Router", external_gateway_info={"network": "public"}),
        # Both ports of the router have no name, so several match "".
        "leg": resource("Neutron::RouterInterface", router=ref("router"), subnet=ref("subnet")),
        "server": resource("Nova::Server", "leg", image="i", flavor="f", networks=networks),
    }


def floating(network: object) -> dict[str, Any]:
    """Return a floating address for the server, by its address on a network."""
    port = attribute("server", "addresses", network, 0, "port")
    return {
        "ip": resource("Neutron::FloatingIP", "leg", floating_network="public"),
        "association": resource(
            "Neutron::FloatingIPAssociation", floatingip_id=ref("ip"), port_id=port
        ),
    }


def test_floating_address_is_accepted_without_ports(cloud: Any, stacks: Any) -> None:
    """Heat's own scenario of a signal maps one, by the network of its template."""
    server = routed("outside", "10.100.0.0/16", [{"subnet": ref("subnet")}])
    stacks.complete(hot(**server, **floating("outside")))


def test_server_attributes_use_the_networks_of_its_template(
    cloud: Any, stacks: Any, compute: Any
) -> None:
    """Heat lists the ports of a server in Neutron, under the names and ids of their networks."""
    network = ref("net")
    server = routed("inside", "10.9.0.0/24", [{"network": network}, {"network": "hotplate"}])
    outputs = {
        "port": attribute("server", "addresses", "inside", 0, "port"),
        "subnets": attribute("server", "addresses", network, 0, "subnets", 0, "cidr"),
        "by_id": attribute("server", "networks", network, 0),
        "by_name": attribute("server", "networks", "inside", 0),
        "second": attribute("server", "networks", "hotplate", 0),
    }
    made = stacks.complete(hot(outputs, **server, **floating(network)))
    values = stacks.outputs(made)
    assert values["port"] == stacks.client.resources.get(made, "server").physical_resource_id
    assert values["subnets"] == "10.9.0.0/24"
    assert values["by_id"] == values["by_name"] == values["second"] == "169.254.169.15"
