"""Heat's own OS::Neutron::* plug-ins, unpatched, against Neutron's API."""

from __future__ import annotations

import re
import uuid
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from neutronclient.common import exceptions as failures
from recording_cloud import attribute, hot, ref, resource

from hotplate.cloud.neutron.networking import DEFAULT_SUBNET

HEATS_OWN = "heat.engine.resources.openstack.neutron."


def neutron_of(kind: str, *needed: str, **properties: Any) -> dict[str, Any]:
    return resource(f"Neutron::{kind}", *needed, **properties)


def vlan(number: int) -> dict[str, Any]:
    return {"port": ref("sub"), "segmentation_type": "vlan", "segmentation_id": number}


def template() -> dict[str, Any]:
    """Return a template with a resource of each type."""
    ssh = {"protocol": "tcp", "port_range_min": 22, "port_range_max": 22}
    route = {"destination": "192.168.9.0/24", "nexthop": "10.3.0.9"}
    resources = {
        "net": neutron_of("Net", name="inner", tags=["blue"]),
        "subnet": neutron_of(
            "Subnet",
            network=ref("net"),
            cidr="10.3.0.0/24",
            allocation_pools=[{"start": "10.3.0.20", "end": "10.3.0.30"}],
            dns_nameservers=["10.3.0.3"],
        ),
        "group": neutron_of("SecurityGroup", rules=[ssh]),
        "rule": neutron_of(
            "SecurityGroupRule",
            security_group=ref("group"),
            protocol="icmp",
            remote_ip_prefix="10.3.0.0/24",
        ),
        "port": neutron_of(
            "Port",
            network=ref("net"),
            fixed_ips=[{"subnet": ref("subnet"), "ip_address": "10.3.0.9"}],
            security_groups=[ref("group")],
            allowed_address_pairs=[{"ip_address": "10.3.0.99"}],
        ),
        "any": neutron_of("Port", "subnet", network=ref("net")),
        "router": neutron_of("Router", external_gateway_info={"network": "public"}),
        "leg": neutron_of("RouterInterface", router=ref("router"), subnet=ref("subnet")),
        "floating": neutron_of("FloatingIP", "leg", floating_network="public"),
        "association": neutron_of(
            "FloatingIPAssociation", floatingip_id=ref("floating"), port_id=ref("port")
        ),
        "extra": neutron_of("ExtraRouteSet", "leg", router=ref("router"), routes=[route]),
        "pool": neutron_of("SubnetPool", prefixes=["10.40.0.0/16"], default_prefixlen=26),
        "other": neutron_of("Net"),
        "cut": neutron_of("Subnet", network=ref("other"), subnetpool=ref("pool")),
        "six": neutron_of("Subnet", network=ref("other"), ip_version=6, cidr="fd00:40::/64"),
        "single": neutron_of(
            "ExtraRoute",
            "extra",
            router_id=ref("router"),
            destination="192.168.8.0/24",
            nexthop="10.3.0.9",
        ),
        "provider": neutron_of(
            "ProviderNet", network_type="vlan", physical_network="wire", segmentation_id=7
        ),
        "quota": neutron_of("Quota", project="hotplate", network=150),
        "second": neutron_of("Router"),
        "way": neutron_of("RouterGateway", router_id=ref("second"), network="public"),
        "parent": neutron_of("Port", "any", network=ref("net")),
        "sub": neutron_of("Port", "cut", network=ref("other")),
        "trunk": neutron_of("Trunk", port=ref("parent"), sub_ports=[vlan(10)]),
    }
    outputs = {
        "asked": attribute("port", "fixed_ips", 0, "ip_address"),
        "given": attribute("any", "fixed_ips", 0, "ip_address"),
        "mac": attribute("any", "mac_address"),
        "floating": attribute("floating", "floating_ip_address"),
        "cut": attribute("cut", "cidr"),
        "gateway": attribute("subnet", "gateway_ip"),
        "net": ref("net"),
        "parent": attribute("trunk", "port_id"),
        "whole": attribute("net", "show"),
    }
    return hot(outputs, **resources)


def registered() -> dict[str, type]:
    """Return the classes of all types of Neutron in this Heat, by type."""
    # Only in a running cloud, which chooses the threading of Heat's libraries.
    from heat.engine import resources

    from hotplate.cloud.heat.stand_ins import all_types

    environment = resources.global_env()
    kinds = [each for each in all_types(environment) if each.startswith("OS::Neutron::")]
    return {kind: environment.get_class(kind) for kind in kinds}


def test_each_type_is_real_and_tested_or_a_documented_stand_in(
    cloud: Any,
) -> None:
    kinds = registered()
    stood_in = kinds.keys() & set(cloud._engine.stood_in)
    own = kinds.keys() - stood_in
    assert all(kinds[each].__module__.startswith(HEATS_OWN) for each in own)
    tested = {each["type"] for each in template()["resources"].values()}
    assert own == tested - {"OS::Neutron::ProviderNet", "OS::Neutron::Quota"}
    page = (Path(__file__).parents[2] / "docs" / "testing.rst").read_text()
    table = page[page.index(".. _neutron-stand-ins:") :]
    table = table[: table.index("A template names what its own cloud has.")]
    named = {f"OS::Neutron::{each}" for each in re.findall(r"``((?:\w+::)?[A-Z]\w+)``", table)}
    assert named == stood_in


def test_stand_in_type_completes_and_is_reported(cloud: Any, stacks: Any) -> None:
    resources = {
        "scope": neutron_of("AddressScope"),
        # Heat hides it because it is old.
        "balancer": neutron_of("LBaaS::LoadBalancer", vip_subnet=DEFAULT_SUBNET),
    }
    stack_id = stacks.complete(hot(**resources))
    assert {(each.kind, each.name) for each in cloud.stand_ins(stack_id)} == {
        ("OS::Neutron::AddressScope", "scope"),
        ("OS::Neutron::LBaaS::LoadBalancer", "balancer"),
    }


def test_each_type_is_created_changed_and_deleted(cloud: Any, stacks: Any, neutron: Any) -> None:
    stack_id = stacks.complete(template())
    values = stacks.outputs(stack_id)
    assert (values["asked"], values["given"]) == ("10.3.0.9", "10.3.0.20")
    assert values["mac"].startswith("fa:16:3e:")
    assert (values["gateway"], values["cut"]) == ("10.3.0.1", "10.40.0.0/26")
    assert values["whole"]["tags"] == ["blue"]
    (floating,) = neutron.list_floatingips(floating_ip_address=values["floating"])["floatingips"]
    assert (floating["fixed_ip_address"], floating["status"]) == ("10.3.0.9", "ACTIVE")
    (subport,) = neutron.show_port(values["parent"])["port"]["trunk_details"]["sub_ports"]
    assert (subport["segmentation_type"], subport["segmentation_id"]) == ("vlan", 10)
    stand_ins = {(each.kind, each.name) for each in cloud.stand_ins(stack_id)}
    assert {
        ("OS::Neutron::FloatingIP", "floating"),
        ("OS::Neutron::SecurityGroup", "group"),
        ("OS::Neutron::RouterGateway", "way"),
        ("OS::Neutron::ProviderNet", "provider"),
        ("OS::Neutron::Quota", "quota"),
        ("OS::Neutron::Trunk", "trunk"),
        ("way out by OS::Neutron::Router", "router"),
        ("allowed_address_pairs by OS::Neutron::Port", "port"),
    } <= stand_ins
    # These types carry packets.
    assert not stand_ins & {
        ("OS::Neutron::Router", "router"),
        ("OS::Neutron::RouterInterface", "leg"),
        ("OS::Neutron::ExtraRouteSet", "extra"),
        ("OS::Neutron::Subnet", "subnet"),
        ("OS::Neutron::Subnet", "six"),
    }

    changed = template()
    changed["resources"]["net"]["properties"] |= {"name": "renamed", "tags": ["red"]}
    changed["resources"]["port"]["properties"]["fixed_ips"][0]["ip_address"] = "10.3.0.10"
    changed["resources"]["subnet"]["properties"]["dns_nameservers"] = []
    # As UpdateTrunkTest.test_update_existing_sub_port_on_trunk of heat-tempest-plugin.
    changed["resources"]["trunk"]["properties"] |= {"sub_ports": [vlan(99)], "name": "pineapple"}
    stacks.update(stack_id, changed)
    assert stacks.outputs(stack_id)["asked"] == "10.3.0.10"
    details = neutron.show_port(values["parent"])["port"]["trunk_details"]
    assert [each["segmentation_id"] for each in details["sub_ports"]] == [99]
    assert neutron.show_trunk(details["trunk_id"])["trunk"]["name"] == "pineapple"
    assert neutron.show_network(values["net"])["network"]["name"] == "renamed"
    assert neutron.show_network(values["net"])["network"]["tags"] == ["red"]

    stacks.delete(stack_id)
    assert neutron.list_networks(name="renamed")["networks"] == []
    assert neutron.list_floatingips()["floatingips"] == neutron.list_routers()["routers"] == []


def test_neutronclient_logs_no_deprecation(stacks: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Heat creates a client for each request, so the line would be on the terminal each time."""
    stacks.complete(hot(net=neutron_of("Net")))
    assert "heat.engine.resource" in {each.name for each in caplog.records}
    assert [each for each in caplog.records if each.name.startswith("neutronclient")] == []


def test_elastic_ip_is_a_floating_ip(cloud: Any, stacks: Any, neutron: Any) -> None:
    """As in Heat's own plug-in (``heat/engine/resources/aws/ec2/eip.py``)."""
    resources = {
        "one": resource("Nova::Server", image="i", flavor="m1.small"),
        # A made-up network is external as well; Heat fails if there is more than one.
        "two": server(network="lan"),
        "eip": resource("AWS::EC2::EIP", InstanceId=ref("one")),
        "loose": resource("AWS::EC2::EIP", "two"),
        "association": resource(
            "AWS::EC2::EIPAssociation", InstanceId=ref("two"), EIP=ref("loose")
        ),
    }
    outputs = {
        "one": attribute("one", "networks", "hotplate"),
        "address": ref("eip"),
        "loose": ref("loose"),
        "id": attribute("loose", "AllocationId"),
    }
    stack_id = stacks.complete(hot(outputs, **resources))
    values = stacks.outputs(stack_id)
    (floating,) = neutron.list_floatingips(floating_ip_address=values["address"])["floatingips"]
    assert values["one"] == [floating["fixed_ip_address"], values["address"]]
    loose = neutron.show_floatingip(values["id"])["floatingip"]
    assert loose["floating_ip_address"] == values["loose"]
    assert loose["port_id"]
    # It is not enforced: no packet passes through it.
    stand_ins = {(each.kind, each.name) for each in cloud.stand_ins(stack_id)}
    assert {("AWS::EC2::EIP", "eip"), ("AWS::EC2::EIPAssociation", "association")} <= stand_ins
    stacks.delete(stack_id)
    assert neutron.list_floatingips()["floatingips"] == []


def test_aws_security_group_is_one_of_neutron(cloud: Any, stacks: Any, neutron: Any) -> None:
    """As in Heat's own plug-in (``heat/engine/resources/aws/ec2/security_group.py``)."""
    rule = {"IpProtocol": "tcp", "FromPort": "80", "ToPort": "80", "CidrIp": "10.0.0.0/8"}
    ingress = {"GroupDescription": "the web", "SecurityGroupIngress": [rule]}
    instance = {"ImageId": "i", "InstanceType": "f", "SecurityGroups": [ref("group")]}
    resources = {
        "group": resource("AWS::EC2::SecurityGroup", **ingress),
        "instance": resource("AWS::EC2::Instance", **instance),
    }
    stack_id = stacks.complete(hot(**resources))
    (group,) = neutron.list_security_groups(description="the web")["security_groups"]
    (made,) = [each for each in group["security_group_rules"] if each["direction"] == "ingress"]
    assert (made["port_range_max"], made["remote_ip_prefix"]) == (80, "10.0.0.0/8")
    (server,) = [each for each in cloud.servers.all() if each.spec.resource_name == "instance"]
    (port,) = neutron.list_ports(device_id=server.spec.id)["ports"]
    assert port["security_groups"] == [group["id"]]
    stood_in = {(each.kind, each.name) for each in cloud.stand_ins(stack_id)}
    assert ("AWS::EC2::SecurityGroup", "group") in stood_in
    assert group["id"] not in {each.name for each in cloud.taken_for_granted()}


def test_aws_vpc_is_a_network_of_neutron(cloud: Any, stacks: Any, neutron: Any) -> None:
    """As in Heat's own plug-ins (``heat/engine/resources/aws/ec2``)."""

    def ec2(kind: str, **properties: Any) -> dict[str, Any]:
        return resource(f"AWS::EC2::{kind}", **properties)

    vpc, subnet, table = {"VpcId": ref("vpc")}, {"SubnetId": ref("subnet")}, ref("table")
    resources = {
        "vpc": ec2("VPC", CidrBlock="10.77.0.0/16"),
        "subnet": ec2("Subnet", CidrBlock="10.77.1.0/24", **vpc),
        "gateway": ec2("InternetGateway"),
        "attachment": ec2("VPCGatewayAttachment", InternetGatewayId=ref("gateway"), **vpc),
        "table": ec2("RouteTable", **vpc),
        "association": ec2("SubnetRouteTableAssociation", RouteTableId=table, **subnet),
        "nic": ec2("NetworkInterface", PrivateIpAddress="10.77.1.50", **subnet),
        "one": ec2("Instance", ImageId="i", InstanceType="f", NetworkInterfaces=[ref("nic")]),
        "two": ec2("Instance", ImageId="i", InstanceType="f", **subnet),
    }
    outputs = {
        "one": attribute("one", "PrivateIp"),
        "two": attribute("two", "PrivateIp"),
        "table": table,
        "vpc": ref("vpc"),
    }
    before = neutron.list_networks()["networks"]
    stack_id = stacks.complete(hot(outputs, **resources))
    values = stacks.outputs(stack_id)
    assert values["one"] == "10.77.1.50"
    assert ip_address(values["two"]) in ip_network("10.77.1.0/24")
    router = neutron.show_router(values["table"])["router"]
    assert router["external_gateway_info"]
    (inner,) = neutron.list_ports(device_id=router["id"], network_id=values["vpc"])["ports"]
    assert inner["fixed_ips"][0]["ip_address"] == "10.77.1.1"
    # These are stored, and no packet goes out.
    stood_in = {each.name for each in cloud.stand_ins(stack_id)}
    assert stood_in & {*resources} == {"attachment", "gateway"}
    stacks.delete(stack_id)
    # Nothing was made up for the subnet, and nothing is left.
    assert neutron.list_networks()["networks"] == before


@pytest.mark.parametrize("vpc", ["vpc-0a1b2c3d", "9392d605-90bd-4547-8c0a-2d3609fb667f"])
def test_vpc_of_another_cloud_is_assumed(cloud: Any, stacks: Any, neutron: Any, vpc: str) -> None:
    template = hot(
        subnet=resource("AWS::EC2::Subnet", VpcId=vpc, CidrBlock="10.78.1.0/24"),
        table=resource("AWS::EC2::RouteTable", VpcId=vpc),
    )
    stack_id = stacks.complete(template)
    (subnet,) = neutron.list_subnets(cidr="10.78.1.0/24")["subnets"]
    network = neutron.show_network(subnet["network_id"])["network"]
    assert vpc in (network["id"], network["name"])
    assert ("network", vpc) in {(each.kind, each.name) for each in cloud.taken_for_granted()}
    stacks.delete(stack_id)


def test_allocation_pools_are_removed_from_a_subnet(stacks: Any, neutron: Any) -> None:
    """Heat sends ``[]`` for a removed property; heat-tempest-plugin's UpdateSubnetTest."""
    whole = template()["resources"]
    body = hot({"subnet": ref("subnet")}, net=whole["net"], subnet=whole["subnet"])
    stack_id = stacks.complete(body)
    subnet = stacks.outputs(stack_id)["subnet"]
    assert neutron.show_subnet(subnet)["subnet"]["allocation_pools"]
    del body["resources"]["subnet"]["properties"]["allocation_pools"]
    stacks.update(stack_id, body)
    assert neutron.show_subnet(subnet)["subnet"]["allocation_pools"] == []


@pytest.mark.parametrize("subnet", [DEFAULT_SUBNET, "subnet"])
def test_aws_instance_on_a_subnet_completes(stacks: Any, subnet: str) -> None:
    properties = {"ImageId": "i", "InstanceType": "m1.small", "SubnetId": subnet}
    stacks.complete(hot(instance=resource("AWS::EC2::Instance", **properties)))


def with_port(**properties: Any) -> dict[str, Any]:
    return hot(port=neutron_of("Port", **{"network": "hotplate", **properties}))


def server(**network: str) -> dict[str, Any]:
    return resource("Nova::Server", image="i", flavor="f", networks=[network])


def port(network: str, **fixed: str) -> dict[str, Any]:
    return neutron_of("Port", network=network, **({"fixed_ips": [fixed]} if fixed else {}))


def test_assumed_resources_are_created_once_and_reported(
    cloud: Any, stacks: Any, neutron: Any
) -> None:
    other = str(uuid.uuid4())
    with pytest.raises(failures.NotFound):
        neutron.show_network(other)
    stacks.complete(hot(one=port("office"), two=port("office"), three=port(other)))
    (office,) = neutron.list_networks(name="office")["networks"]
    assert len(neutron.list_ports(network_id=office["id"])["ports"]) == 2
    assert neutron.show_network(other)["network"]["shared"] is True
    named = {(each.kind, each.name) for each in cloud.taken_for_granted()}
    assert {("network", "office"), ("network", other)} <= named
    assert not {"hotplate", "public"} & {name for _, name in named}
    with pytest.raises(failures.NotFound):
        neutron.show_subnet(str(uuid.uuid4()))


def test_own_resource_of_a_template_precedes_a_made_up_one(
    cloud: Any, stacks: Any, neutron: Any
) -> None:
    stacks.complete(hot(port=port("twice")))
    template = hot(
        {"ip": attribute("port", "fixed_ips", 0, "ip_address")},
        net=neutron_of("Net", name="twice"),
        subnet=neutron_of("Subnet", network=ref("net"), cidr="10.77.0.0/24"),
        port={**port("twice"), "depends_on": "subnet"},
    )
    made = stacks.complete(template)
    assert stacks.outputs(made)["ip"] == "10.77.0.2"


def test_made_up_network_has_the_requested_subnet_and_address(
    cloud: Any, stacks: Any, neutron: Any
) -> None:
    template = hot(
        both=port("with-subnet", subnet="its-subnet"),
        fixed=port("with-address", ip_address="192.168.55.10"),
        server=server(network="for-server", subnet="server-subnet"),
        address=server(network="server-address", fixed_ip="172.20.1.1"),
    )
    stacks.complete(template)
    (network,) = neutron.list_networks(name="with-subnet")["networks"]
    (subnet,) = neutron.list_subnets(name="its-subnet")["subnets"]
    assert network["subnets"] == [subnet["id"]]
    (given,) = neutron.list_ports(fixed_ips="ip_address=192.168.55.10")["ports"]
    (network,) = neutron.list_networks(name="with-address")["networks"]
    assert given["network_id"] == network["id"]
    (subnet,) = neutron.list_subnets(network_id=network["id"])["subnets"]
    assert subnet["cidr"] == "192.168.55.0/24"
    (network,) = neutron.list_networks(name="server-address")["networks"]
    (subnet,) = neutron.list_subnets(network_id=network["id"])["subnets"]
    assert (subnet["cidr"], subnet["gateway_ip"]) == ("172.20.1.0/24", "172.20.1.254")


def test_subnet_comes_from_an_assumed_pool(stacks: Any, neutron: Any) -> None:
    subnet = neutron_of("Subnet", network=ref("net"), subnetpool="shared-pool")
    stacks.complete(hot(net=neutron_of("Net"), subnet=subnet))
    (pool,) = neutron.list_subnetpools(name="shared-pool")["subnetpools"]
    (subnet,) = neutron.list_subnets(subnetpool_id=pool["id"])["subnets"]
    assert subnet["cidr"] == "10.64.0.0/24"


@pytest.mark.parametrize(
    ("asked", "kind", "status"),
    [
        ({"prefixes": []}, "EmptySubnetPoolPrefixList", 400),
        ({"prefixes": ["10.0.0.0/8", "fd00::/64"]}, "PrefixVersionMismatch", 400),
        ({"prefixes": ["10.0.0.0/8"], "min_prefixlen": 33}, "IllegalSubnetPoolPrefixBounds", 400),
    ],
)
def test_bad_subnet_pool_is_refused(made: Any, asked: Any, kind: str, status: int) -> None:
    with pytest.raises(failures.NeutronClientException) as caught:
        made("subnetpool", name="p", **asked)
    assert caught.value.status_code == status


def test_subnet_pool_gives_only_its_own_prefixes(neutron: Any, made: Any) -> None:
    pool = made("subnetpool", name="small", prefixes=["10.90.0.0/30"], min_prefixlen=30)
    network = made("network", name="n")
    subnet = {"network_id": network["id"], "subnetpool_id": pool["id"], "ip_version": 4}
    assert made("subnet", **subnet)["cidr"] == "10.90.0.0/30"
    for more, words in (
        ({}, "Insufficient prefix space"),
        ({"cidr": "10.91.0.0/30"}, "Cannot allocate requested"),
        ({"prefixlen": 29}, "minimum allowed prefix"),
    ):
        with pytest.raises(failures.NeutronClientException, match=words):
            made("subnet", **subnet, **more)
    with pytest.raises(failures.Conflict, match="existing allocations"):
        neutron.delete_subnetpool(pool["id"])
    with pytest.raises(failures.BadRequest, match="subset of the new prefixes"):
        neutron.update_subnetpool(pool["id"], {"subnetpool": {"prefixes": ["10.92.0.0/24"]}})


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("192.168.9.9", "192.168.9.9 is not a valid IP"),
        ("10.0.0.50", "10.0.0.50 already allocated"),
    ],
)
def test_address_outside_or_in_use_fails_with_a_reason(
    stacks: Any, neutron: Any, made: Any, address: str, words: str
) -> None:
    network = neutron.list_networks(name="hotplate")["networks"][0]["id"]
    made("port", network_id=network, fixed_ips=[{"ip_address": "10.0.0.50"}])
    stack_id = stacks.create(with_port(fixed_ips=[{"ip_address": address}]))
    assert words in stacks.wait(stack_id, "CREATE_FAILED").stack_status_reason


def test_port_without_network_is_on_the_default_one(stacks: Any, neutron: Any) -> None:
    stack_id = stacks.complete(with_port())
    port_id = stacks.client.resources.get(stack_id, "port").physical_resource_id
    made = neutron.show_port(port_id)["port"]
    assert made["fixed_ips"][0]["ip_address"].startswith("10.0.0.")
