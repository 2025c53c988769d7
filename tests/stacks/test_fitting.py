"""A template as deployed in a cloud that is not the embedded one."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from hotplate.stacks import builtin
from hotplate.stacks.fitting import Fit, fitted, needs_network
from hotplate.stacks.template import Template

SERVER: dict[str, Any] = {"type": "OS::Nova::Server", "properties": {"flavor": "m1.small"}}
VERSION = {"heat_template_version": "2018-08-31"}


def server(**properties: object) -> dict[str, Any]:
    made = copy.deepcopy(SERVER)
    made["properties"].update(properties)
    return made


def fit(body: dict[str, Any], **more: Any) -> Template:
    return fitted(Template("a test", {**VERSION, **body}, **more), Fit("IMAGE", "KEY"))


def test_server_gets_the_image_and_the_key_pair():
    body = {"resources": {"web": server(image="debian")}}
    made = fit(body).template["resources"]["web"]["properties"]
    assert made == {"flavor": "m1.small", "image": "IMAGE", "key_name": "KEY"}
    assert body["resources"]["web"]["properties"]["image"] == "debian"


def test_named_key_pair_is_kept():
    made = fit({"resources": {"web": server(key_name="mine")}})
    assert made.template["resources"]["web"]["properties"]["key_name"] == "mine"


def test_image_and_key_pair_parameters_get_values():
    body = {
        "parameters": {"image": {"type": "string"}, "key": {"type": "string"}},
        "resources": {"web": server(image={"get_param": "image"}, key_name={"get_param": "key"})},
    }
    assert fit(body).parameters == {"image": "IMAGE", "key": "KEY"}
    given = fit(body, parameters={"image": "debian", "key": "mine"})
    assert given.parameters == {"image": "IMAGE", "key": "mine"}


def test_server_booting_from_a_volume_is_kept():
    disks = [{"volume_id": "1"}]
    made = fit({"resources": {"web": server(block_device_mapping_v2=disks)}})
    assert "image" not in made.template["resources"]["web"]["properties"]


def test_servers_of_groups_and_nested_templates_are_fitted():
    group = {"type": "OS::Heat::ResourceGroup", "properties": {"resource_def": server()}}
    nested = yaml.safe_dump({**VERSION, "resources": {"one": server(image="debian")}})
    script = "#!/bin/sh\necho heat_template_version\n"
    made = fit(
        {"resources": {"many": group}}, files={"file:///one.yaml": nested, "file:///run.sh": script}
    )
    inner = made.template["resources"]["many"]["properties"]["resource_def"]["properties"]
    assert inner["image"] == "IMAGE"
    one = yaml.safe_load(made.files["file:///one.yaml"])["resources"]["one"]["properties"]
    assert (one["image"], one["key_name"]) == ("IMAGE", "KEY")
    assert made.files["file:///run.sh"] == script


def test_cloudformation_instance_is_fitted():
    instance = {"Type": "AWS::EC2::Instance", "Properties": {"ImageId": {"Ref": "Image"}}}
    body = {"Parameters": {"Image": {"Type": "String"}}, "Resources": {"web": instance}}
    made = fit(body)
    properties = made.template["Resources"]["web"]["Properties"]
    assert properties == {"ImageId": "IMAGE", "KeyName": "KEY"}
    assert made.parameters == {"Image": "IMAGE"}


def connected(body: dict[str, Any], **more: Any) -> Template:
    template = Template("a test", {**VERSION, **body}, **more)
    return fitted(template, Fit("IMAGE", "KEY", network="NET", subnet="SUBNET"))


def test_server_without_networks_gets_that_of_the_run():
    """Real Heat 19 and 27: "nics are required after microversion 2.36"."""
    lan = [{"network": "lan"}]
    auto = [{"allocate_network": "auto"}]
    servers = {
        "none": server(),
        "empty": server(networks=[]),
        "auto": server(networks=auto),
        "named": server(networks=lan),
        "asked": server(networks={"get_param": "networks"}),
    }
    made = connected({"resources": servers}).template["resources"]
    networks = {name: each["properties"]["networks"] for name, each in made.items()}
    ours = [{"network": "NET"}]
    assert networks == {
        **dict.fromkeys(("none", "empty", "auto"), ours),
        "named": lan,
        "asked": {"get_param": "networks"},
    }


def test_cloudformation_instance_gets_the_subnet_of_the_run():
    """Heat makes a port on its network (heat/engine/resources/aws/ec2/instance.py)."""
    instance = {"Type": "AWS::EC2::Instance", "Properties": {"ImageId": "any"}}
    placed = {**instance, "Properties": {"ImageId": "any", "SubnetId": "theirs"}}
    made = connected({"Resources": {"web": instance, "db": placed}}).template["Resources"]
    assert made["web"]["Properties"]["SubnetId"] == "SUBNET"
    assert made["db"]["Properties"]["SubnetId"] == "theirs"


def test_network_is_needed_by_a_nested_server_without_one():
    lan = server(networks=[{"network": "lan"}])
    nested = yaml.safe_dump({**VERSION, "resources": {"one": server()}})
    body = {**VERSION, "resources": {"web": lan}}
    assert not needs_network(Template("a test", body))
    assert needs_network(Template("a test", body, files={"file:///one.yaml": nested}))


def test_builtin_templates_leave_the_network_to_the_cloud():
    """In the words of Heat, so that they also work where nothing fits them."""
    for made in (builtin.plain(), builtin.of(["script"]), builtin.of(["script", "salt"])):
        assert made.template["resources"]["server"]["properties"]["networks"] == [
            {"allocate_network": "auto"}
        ]
        assert needs_network(made)
