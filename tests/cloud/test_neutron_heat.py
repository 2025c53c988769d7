"""Heat's own OS::Neutron::* plug-ins, unpatched, against Neutron's API."""

from __future__ import annotations

from typing import Any

import pytest
from heatclient import exc as heat_exceptions
from neutronclient.v2_0 import client as neutron_client
from test_clients import owner_session

from hotplate.cloud.neutron.networking import DEFAULT_SUBNET


@pytest.fixture(scope="module")
def neutron(cloud: Any) -> Any:
    return neutron_client.Client(session=owner_session(cloud))


def template(**more: Any) -> dict[str, Any]:
    resources = {
        "net": {"type": "OS::Neutron::Net", "properties": {"name": "inner", "tags": ["blue"]}},
        "subnet": {
            "type": "OS::Neutron::Subnet",
            "properties": {
                "network": {"get_resource": "net"},
                "cidr": "10.3.0.0/24",
                "allocation_pools": [{"start": "10.3.0.20", "end": "10.3.0.30"}],
                "dns_nameservers": ["10.3.0.3"],
            },
        },
        "group": {
            "type": "OS::Neutron::SecurityGroup",
            "properties": {
                "rules": [{"protocol": "tcp", "port_range_min": 22, "port_range_max": 22}]
            },
        },
        "rule": {
            "type": "OS::Neutron::SecurityGroupRule",
            "properties": {
                "security_group": {"get_resource": "group"},
                "protocol": "icmp",
                "remote_ip_prefix": "10.3.0.0/24",
            },
        },
        "port": {
            "type": "OS::Neutron::Port",
            "properties": {
                "network": {"get_resource": "net"},
                "fixed_ips": [{"subnet": {"get_resource": "subnet"}, "ip_address": "10.3.0.9"}],
                "security_groups": [{"get_resource": "group"}],
                "allowed_address_pairs": [{"ip_address": "10.3.0.99"}],
            },
        },
        "any": {
            "type": "OS::Neutron::Port",
            "depends_on": "subnet",
            "properties": {"network": {"get_resource": "net"}},
        },
        "router": {
            "type": "OS::Neutron::Router",
            "properties": {"external_gateway_info": {"network": "public"}},
        },
        "leg": {
            "type": "OS::Neutron::RouterInterface",
            "properties": {
                "router": {"get_resource": "router"},
                "subnet": {"get_resource": "subnet"},
            },
        },
        "floating": {
            "type": "OS::Neutron::FloatingIP",
            "depends_on": "leg",
            "properties": {"floating_network": "public"},
        },
        "association": {
            "type": "OS::Neutron::FloatingIPAssociation",
            "properties": {
                "floatingip_id": {"get_resource": "floating"},
                "port_id": {"get_resource": "port"},
            },
        },
        **more,
    }
    outputs = {
        "asked": {"value": {"get_attr": ["port", "fixed_ips", 0, "ip_address"]}},
        "given": {"value": {"get_attr": ["any", "fixed_ips", 0, "ip_address"]}},
        "mac": {"value": {"get_attr": ["any", "mac_address"]}},
        "floating": {"value": {"get_attr": ["floating", "floating_ip_address"]}},
        "gateway": {"value": {"get_attr": ["subnet", "gateway_ip"]}},
        "net": {"value": {"get_resource": "net"}},
        "whole": {"value": {"get_attr": ["net", "show"]}},
    }
    return {"heat_template_version": "2018-08-31", "resources": resources, "outputs": outputs}


def test_each_type_is_made_changed_and_removed(cloud: Any, stacks: Any, neutron: Any) -> None:
    stack_id = stacks.create(template())
    stacks.wait(stack_id, "CREATE_COMPLETE", seconds=60)
    values = stacks.outputs(stack_id)
    assert (values["asked"], values["given"]) == ("10.3.0.9", "10.3.0.20")
    assert values["mac"].startswith("fa:16:3e:")
    assert values["gateway"] == "10.3.0.1"
    assert values["whole"]["tags"] == ["blue"]
    (floating,) = neutron.list_floatingips(floating_ip_address=values["floating"])["floatingips"]
    assert (floating["fixed_ip_address"], floating["status"]) == ("10.3.0.9", "ACTIVE")
    kinds = {each.kind for each in cloud.stand_ins(stack_id)}
    assert {"OS::Neutron::Router", "OS::Neutron::SecurityGroup"} <= kinds

    changed = template()
    changed["resources"]["net"]["properties"] |= {"name": "renamed", "tags": ["red"]}
    changed["resources"]["port"]["properties"]["fixed_ips"][0]["ip_address"] = "10.3.0.10"
    changed["resources"]["subnet"]["properties"]["dns_nameservers"] = []
    stacks.client.stacks.update(stack_id, template=changed)
    stacks.wait(stack_id, "UPDATE_COMPLETE", seconds=60)
    assert stacks.outputs(stack_id)["asked"] == "10.3.0.10"
    assert neutron.show_network(values["net"])["network"]["name"] == "renamed"
    assert neutron.show_network(values["net"])["network"]["tags"] == ["red"]

    stacks.client.stacks.delete(stack_id)
    stacks.wait(stack_id, "DELETE_COMPLETE", seconds=60)
    assert neutron.list_networks(name="renamed")["networks"] == []
    assert neutron.list_floatingips()["floatingips"] == neutron.list_routers()["routers"] == []


def test_an_instance_of_aws_is_on_a_subnet_by_its_id(stacks: Any) -> None:
    instance = {
        "type": "AWS::EC2::Instance",
        "properties": {"ImageId": "i", "InstanceType": "m1.small", "SubnetId": DEFAULT_SUBNET},
    }
    stack_id = stacks.create(
        {"heat_template_version": "2018-08-31", "resources": {"instance": instance}}
    )
    stacks.wait(stack_id, "CREATE_COMPLETE")


def with_port(**properties: Any) -> dict[str, Any]:
    port = {"type": "OS::Neutron::Port", "properties": {"network": "hotplate", **properties}}
    return {"heat_template_version": "2018-08-31", "resources": {"port": port}}


def test_a_network_that_is_not_there_is_refused_at_once(stacks: Any) -> None:
    with pytest.raises(heat_exceptions.HTTPBadRequest, match="nowhere"):
        stacks.create(with_port(network="nowhere"))


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("192.168.9.9", "192.168.9.9 is not a valid IP"),
        ("10.0.0.50", "10.0.0.50 already allocated"),
    ],
)
def test_an_address_outside_or_taken_says_so(
    stacks: Any, neutron: Any, address: str, words: str
) -> None:
    network = neutron.list_networks(name="hotplate")["networks"][0]["id"]
    body = {"network_id": network, "fixed_ips": [{"ip_address": "10.0.0.50"}]}
    port = neutron.create_port({"port": body})["port"]
    try:
        stack_id = stacks.create(with_port(fixed_ips=[{"ip_address": address}]))
        failed = stacks.wait(stack_id, "CREATE_FAILED")
    finally:
        neutron.delete_port(port["id"])
    assert words in failed.stack_status_reason


def test_a_port_that_asks_for_nothing_is_on_the_default_network(stacks: Any, neutron: Any) -> None:
    stack_id = stacks.create(with_port())
    stacks.wait(stack_id, "CREATE_COMPLETE")
    (port,) = neutron.list_ports(fixed_ips="ip_address_substr=10.0.0.")["ports"]
    assert port["admin_state_up"] is True
