"""A template as deployed in a cloud that is not the embedded one."""

from __future__ import annotations

import copy
from typing import Any

import yaml

from hotplate.stacks.fitting import fitted
from hotplate.stacks.template import Template

SERVER: dict[str, Any] = {"type": "OS::Nova::Server", "properties": {"flavor": "m1.small"}}
VERSION = {"heat_template_version": "2018-08-31"}


def server(**properties: object) -> dict[str, Any]:
    made = copy.deepcopy(SERVER)
    made["properties"].update(properties)
    return made


def fit(body: dict[str, Any], **more: Any) -> Template:
    return fitted(Template("a test", {**VERSION, **body}, **more), image="IMAGE", key_pair="KEY")


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
