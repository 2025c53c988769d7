"""Whole templates: HOT and CFN, nested, grouped, conditional, updated, suspended, stand-ins."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from heatclient import exc as heat_exceptions
from heatclient.common import template_utils
from test_software_config import TEMPLATE, booted, inputs_of, poll_for_deployment
from wire_guest import describe, guest

SERVER = {
    "type": "OS::Nova::Server",
    "properties": {"image": "img", "flavor": "flv", "user_data_format": "RAW"},
}


def hot(resources: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return {"heat_template_version": "2018-08-31", "resources": resources, **sections}


def by_name(kind: str, *, after: str = "", **properties: Any) -> dict[str, Any]:
    depends = {"depends_on": after} if after else {}
    return {"type": kind, "properties": properties, **depends}


def ref(name: str) -> dict[str, str]:
    return {"get_resource": name}


def write(path: Path, template: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(template))
    return path


def test_missing_services_have_stand_ins(cloud: Any, stacks: Any) -> None:
    resources = {
        "net": by_name("OS::Neutron::Net"),
        "subnet": by_name("OS::Neutron::Subnet", network=ref("net"), cidr="10.1.0.0/24"),
        "port": by_name(
            "OS::Neutron::Port", after="subnet", network=ref("net"), security_groups=["default"]
        ),
        "flavor": by_name("OS::Nova::Flavor", ram=512, vcpus=1, disk=1),
        "volume": by_name("OS::Cinder::Volume", size=1),
        "attachment": by_name(
            "OS::Cinder::VolumeAttachment", instance_uuid=ref("server"), volume_id=ref("volume")
        ),
        "key": by_name("OS::Nova::KeyPair", name="made-key", save_private_key=True),
        "server": by_name(
            "OS::Nova::Server",
            image="CentOS",
            flavor=ref("flavor"),
            key_name=ref("key"),
            networks=[{"port": ref("port")}],
        ),
    }
    outputs = {
        "fixed": {"value": {"get_attr": ["port", "fixed_ips", 0, "ip_address"]}},
        "addresses": {"value": {"get_attr": ["server", "networks"]}},
        "whole": {"value": {"get_attr": ["server", "addresses"]}},
        "server_show": {"value": {"get_attr": ["server", "show"]}},
        "private": {"value": {"get_attr": ["key", "private_key"]}},
    }
    stack_id = stacks.create(hot(resources, outputs=outputs))
    stacks.wait(stack_id, "CREATE_COMPLETE")
    values = stacks.outputs(stack_id)
    assert values["fixed"] == "10.1.0.2"
    assert {each for those in values["addresses"].values() for each in those} == {"10.1.0.2"}
    assert {each["addr"] for those in values["whole"].values() for each in those} == {"10.1.0.2"}
    assert values["server_show"]["status"] == "ACTIVE"
    assert "PRIVATE KEY" in values["private"]
    stand_ins = {(one.kind, one.name) for one in cloud.stand_ins(stack_id)}
    assert ("OS::Cinder::Volume", "volume") in stand_ins
    assert ("image", "CentOS") in stand_ins
    kinds = {kind for kind, _ in stand_ins}
    assert not kinds & {"OS::Nova::Server", "OS::Nova::KeyPair", "key pair"}


def test_server_without_networks_is_on_the_one_that_its_address_is_read_from(
    cloud: Any, stacks: Any, tmp_path: Path
) -> None:
    """All of a stack are, also nested ones: in a cloud they are on its only network."""
    asked = {"get_param": "net"}
    child = hot({"inner": SERVER}, outputs={"all": {"value": {"get_attr": ["inner", "networks"]}}})
    write(tmp_path / "child.yaml", child)
    parent = hot(
        {"web": SERVER, "db": SERVER, "nested": {"type": "child.yaml"}},
        parameters={"net": {"type": "string", "default": "lan-of-theirs"}},
        outputs={
            "web": {"value": {"get_attr": ["web", "networks", asked, 0]}},
            "port": {"value": {"get_attr": ["web", "addresses", asked, 0, "port"]}},
            "db": {"value": {"get_attr": ["db", "networks"]}},
            "nested": {"value": {"get_attr": ["nested", "all"]}},
        },
    )
    files, body = template_utils.get_template_contents(str(write(tmp_path / "t.yaml", parent)))
    stack_id = stacks.create(body, files=dict(files))
    stacks.wait(stack_id, "CREATE_COMPLETE")
    values = stacks.outputs(stack_id)
    assert values["web"].startswith("10.")
    assert values["port"]
    assert "lan-of-theirs" in values["db"]
    assert "lan-of-theirs" in values["nested"]
    assert "lan-of-theirs" in {each.name for each in cloud.taken_for_granted()}


@pytest.mark.parametrize("name", ["public", "hotplate"])
def test_server_without_networks_is_on_the_default_one(stacks: Any, name: str) -> None:
    """No server can have an address on the network of the way out."""
    read = {"get_attr": ["web", "networks", name, 0]}
    whole = {"value": {"get_attr": ["web", "networks"]}}
    stack_id = stacks.create(hot({"web": SERVER}, outputs={"a": {"value": read}, "all": whole}))
    stacks.wait(stack_id, "CREATE_COMPLETE")
    assert "hotplate" in stacks.outputs(stack_id)["all"]


def test_aws_instance_has_volumes(stacks: Any) -> None:
    """Heat attaches them by Nova, and asks Cinder whether it has."""
    attached = {"VolumeId": ref("volume"), "Device": "/dev/vdc"}
    resources = {
        "volume": by_name("AWS::EC2::Volume", Size=1, AvailabilityZone="nova"),
        "server": by_name("AWS::EC2::Instance", ImageId="i", InstanceType="f", Volumes=[attached]),
    }
    stacks.wait(stacks.create(hot(resources)), "CREATE_COMPLETE")


def test_stand_ins_may_name_each_other(cloud: Any, stacks: Any) -> None:
    """Heat asks a service about names in a resource, and here there is none to ask."""
    resources = {
        "lb": by_name("OS::Octavia::LoadBalancer", vip_subnet="hotplate"),
        "listener": by_name(
            "OS::Octavia::Listener",
            loadbalancer=ref("lb"),
            protocol="HTTP",
            protocol_port=80,
        ),
        "pool": by_name(
            "OS::Octavia::Pool",
            listener=ref("listener"),
            lb_algorithm="ROUND_ROBIN",
            protocol="HTTP",
        ),
        "member": by_name(
            "OS::Octavia::PoolMember",
            pool=ref("pool"),
            address="10.0.0.9",
            subnet="hotplate",
            protocol_port=80,
        ),
        "monitor": by_name(
            "OS::Octavia::HealthMonitor",
            pool=ref("pool"),
            type="TCP",
            delay=5,
            max_retries=3,
            timeout=5,
        ),
        "policy": by_name(
            "OS::Octavia::L7Policy",
            listener=ref("listener"),
            action="REDIRECT_TO_POOL",
            redirect_pool=ref("pool"),
        ),
        "rule": by_name(
            "OS::Octavia::L7Rule",
            l7policy=ref("policy"),
            type="PATH",
            compare_type="STARTS_WITH",
            value="/",
        ),
        "of_another_cloud": by_name(
            "OS::Octavia::Listener", loadbalancer="front", protocol="HTTP", protocol_port=81
        ),
    }
    outputs = {"vip": {"value": {"get_attr": ["lb", "vip_address"]}}}
    stack_id = stacks.create(hot(resources, outputs=outputs))
    stacks.wait(stack_id, "CREATE_COMPLETE")
    assert {each.name for each in cloud.stand_ins(stack_id)} == set(resources)


def test_constraints_ask_no_missing_service(cloud: Any) -> None:
    from heat.engine import resources
    from heat.engine.resources import _get_mapping

    from hotplate.cloud.heat.stand_ins import ASKED, CONSTRAINTS, _Accept

    del cloud  # registers the constraints
    environment = resources.global_env()
    names = [name for name, _ in _get_mapping("heat.constraints") if "." in name]
    accepted = {name for name in names if environment.get_constraint(name) is _Accept}
    asked = {name for name in names if name in CONSTRAINTS or name.partition(".")[0] in ASKED}
    assert accepted == {*names} - asked
    assert "octavia.loadbalancer" in accepted
    assert "nova.server" in asked


def test_stack_in_an_unknown_region_is_refused(stacks: Any) -> None:
    """As heat-tempest-plugin's RemoteStackTest expects of a real Heat."""
    inner = {"heat_template_version": "2018-08-31"}

    def outer(region: str) -> dict[str, Any]:
        fields = {"context": {"region_name": region}, "template": json.dumps(inner)}
        return hot({"remote": by_name("OS::Heat::Stack", **fields)})

    with pytest.raises(heat_exceptions.HTTPBadRequest, match="DARKHOLE"):
        stacks.create(outer("DARKHOLE"))
    stacks.wait(stacks.create(outer("RegionOne")), "CREATE_COMPLETE")


def test_nested_stacks_are_found_by_registry_and_path(stacks: Any, tmp_path: Path) -> None:
    write(
        tmp_path / "inner.yaml",
        hot(
            {"server": SERVER},
            parameters={"word": {"type": "string"}},
            outputs={"word": {"value": {"get_param": "word"}}},
        ),
    )
    (tmp_path / "note.txt").write_text("from a file")
    outer = write(
        tmp_path / "outer.yaml",
        hot(
            {
                "by_path": {"type": "inner.yaml", "properties": {"word": {"get_file": "note.txt"}}},
                "by_name": {"type": "My::Server", "properties": {"word": "registry"}},
                "many": {
                    "type": "OS::Heat::ResourceGroup",
                    "properties": {
                        "count": 2,
                        "resource_def": {"type": "My::Server", "properties": {"word": "n-%index%"}},
                    },
                },
            },
            outputs={
                "path": {"value": {"get_attr": ["by_path", "word"]}},
                "name": {"value": {"get_attr": ["by_name", "word"]}},
                "many": {"value": {"get_attr": ["many", "word"]}},
            },
        ),
    )
    environment = tmp_path / "env.yaml"
    environment.write_text("resource_registry:\n  My::Server: inner.yaml\n")
    files, template = template_utils.get_template_contents(str(outer))
    env_files, env = template_utils.process_environment_and_files(str(environment))
    stack_id = stacks.create(template, files={**files, **env_files}, environment=env)
    stacks.wait(stack_id, "CREATE_COMPLETE")
    assert stacks.outputs(stack_id) == {
        "path": "from a file",
        "name": "registry",
        "many": ["n-0", "n-1"],
    }


def test_conditions_and_parameters(stacks: Any, compute: Any) -> None:
    template = hot(
        {"always": {"type": "OS::Heat::RandomString"}, "some": {**SERVER, "condition": "wanted"}},
        parameters={"kind": {"type": "string", "constraints": [{"allowed_values": ["a", "b"]}]}},
        conditions={"wanted": {"equals": [{"get_param": "kind"}, "b"]}},
    )
    for kind in ("a", "b"):
        stack_id = stacks.create(template, name=f"cond-{kind}", parameters={"kind": kind})
        stacks.wait(stack_id, "CREATE_COMPLETE")
    assert "cond-a" not in {spec.stack_name for spec in compute.specs.values()}
    assert "cond-b" in {spec.stack_name for spec in compute.specs.values()}
    with pytest.raises(Exception, match="is not an allowed value"):
        stacks.create(template, name="cond-c", parameters={"kind": "c"})


def test_unknown_resource_type_is_a_clear_error(stacks: Any) -> None:
    with pytest.raises(Exception, match="OS::No::Such") as error:
        stacks.create(hot({"one": {"type": "OS::No::Such"}}))
    assert error.value.code == 400


@pytest.mark.parametrize("kind", ["AWS::CloudFormation", "OS::Heat"])
@pytest.mark.parametrize("status", ["SUCCESS", "FAILURE"])
def test_wait_condition(cloud: Any, compute: Any, stacks: Any, kind: str, status: str) -> None:
    aws = kind.startswith("AWS")
    handle = ref("handle") if aws else {"get_attr": ["handle", "endpoint"]}
    timeout, count, name = ("Timeout", "Count", "Handle") if aws else ("timeout", "count", "handle")
    token = "-" if aws else {"get_attr": ["handle", "token"]}
    words = {"template": "URL\nTOKEN", "params": {"URL": handle, "TOKEN": token}}
    wait = {name: ref("handle"), timeout: 60, count: 2}
    template = hot(
        {
            "handle": by_name(f"{kind}::WaitConditionHandle"),
            "wait": by_name(f"{kind}::WaitCondition", **wait),
            "server": by_name(
                "OS::Nova::Server", **SERVER["properties"], user_data={"str_replace": words}
            ),
        },
        outputs={"data": {"value": {"get_attr": ["wait", "Data" if aws else "data"]}}},
    )
    stack_id = stacks.create(template)
    with guest(cloud, booted(stacks, compute, stack_id)) as vm:
        url, token = vm.user_data().decode().splitlines()
        for number, word in enumerate(("SUCCESS", status)):
            if aws:
                body = {
                    "Status": word,
                    "Reason": "r",
                    "UniqueId": f"{number}",
                    "Data": f"d{number}",
                }
                answer = vm.request("PUT", url, data=json.dumps(body), headers={"Content-Type": ""})
            else:
                body = {"status": word, "reason": "r", "id": f"{number}", "data": f"d{number}"}
                answer = vm.request("POST", url, json=body, headers={"X-Auth-Token": token})
            assert answer.status_code == 200, answer.text
        if status == "FAILURE":
            stack = stacks.wait(stack_id, "CREATE_FAILED")
            assert "WaitConditionFailure" in stack.stack_status_reason
            return
        stacks.wait(stack_id, "CREATE_COMPLETE")
    assert json.loads(stacks.outputs(stack_id)["data"]) == {"0": "d0", "1": "d1"}


def test_cfn_format(cloud: Any, compute: Any, stacks: Any) -> None:
    template = {
        "HeatTemplateFormatVersion": "2012-12-12",
        "Resources": {
            "Handle": {"Type": "AWS::CloudFormation::WaitConditionHandle"},
            "Server": {
                "Type": "AWS::EC2::Instance",
                "Properties": {
                    "InstanceType": "m1.small",
                    "ImageId": "F17-x86_64-cfntools",
                    "KeyName": "heatkey",
                    "UserData": {
                        "Fn::Base64": {"Fn::Join": ["", ["cfn-signal '", {"Ref": "Handle"}, "'"]]}
                    },
                },
            },
            "Wait": {
                "Type": "AWS::CloudFormation::WaitCondition",
                "DependsOn": "Server",
                "Properties": {"Handle": {"Ref": "Handle"}, "Timeout": "300"},
            },
        },
        "Outputs": {"Ip": {"Value": {"Fn::GetAtt": ["Server", "PublicIp"]}}},
    }
    stack_id = stacks.create(template)
    with guest(cloud, booted(stacks, compute, stack_id)) as vm:
        text = vm.user_data().decode()
        assert "cfn-boto-cfg" in text
        url = text.split("cfn-signal '")[1].split("'")[0]
        body = {"Status": "SUCCESS", "Reason": "", "UniqueId": "1", "Data": "x"}
        wrong = vm.request(
            "PUT", url, json=body, headers={"Content-Type": "application/x-www-form-urlencoded"}
        )
        assert wrong.status_code == 403
        assert vm.request("PUT", url + "x", json=body).status_code == 403
        assert vm.request("PUT", url, json=body).status_code == 200
        stacks.wait(stack_id, "CREATE_COMPLETE")
    assert stacks.outputs(stack_id)["Ip"].startswith("10.0.0.")


def test_update_suspend_resume_delete(cloud: Any, compute: Any, stacks: Any) -> None:
    stack_id = stacks.create(TEMPLATE)
    server_id = booted(stacks, compute, stack_id)

    def answer(vm: Any, cfn: dict[str, str], action: str) -> None:
        end = time.monotonic() + 120
        while time.monotonic() < end:
            inputs = inputs_of(poll_for_deployment(vm, cfn))
            if inputs["deploy_action"] == action:
                vm.request("POST", inputs["deploy_signal_id"], json={"result": action})
                return
            time.sleep(0.1)
        raise AssertionError(f"no deployment for {action}")

    with guest(cloud, server_id) as vm:
        cfn = vm.cfn_init_data()["os-collect-config"]["cfn"]
        answer(vm, cfn, "CREATE")
        stacks.wait(stack_id, "CREATE_COMPLETE")

        changed = json.loads(json.dumps(TEMPLATE))
        changed["resources"]["deployment"]["properties"]["input_values"]["greeting"] = "again"
        stacks.client.stacks.update(stack_id, template=changed)
        answer(vm, cfn, "UPDATE")
        stacks.wait(stack_id, "UPDATE_COMPLETE")
        assert stacks.outputs(stack_id)["result"] == "UPDATE"

        stacks.client.actions.suspend(stack_id)
        stacks.wait(stack_id, "SUSPEND_COMPLETE")
        assert ("suspend", server_id) in compute.calls
        stacks.client.actions.resume(stack_id)
        stacks.wait(stack_id, "RESUME_COMPLETE")
        assert ("resume", server_id) in compute.calls

        # Heat disables the stack user on shutdown, so the next poll is already refused.
        key = cloud.identity.key(access=cfn["access_key_id"])
        cloud.identity.enable_user(key.user, enabled=False)
        assert describe(vm, cfn).status_code == 403
        cloud.identity.enable_user(key.user, enabled=True)
        assert describe(vm, cfn).status_code == 200
    stacks.client.stacks.delete(stack_id)
    end = time.monotonic() + 120
    while server_id in compute.specs and time.monotonic() < end:
        time.sleep(0.05)
    assert server_id not in compute.specs


def test_server_that_does_not_come_up_fails_the_stack(compute: Any, stacks: Any) -> None:
    compute.boot_state = ("ERROR", "there is no kernel in the image")
    try:
        stack = stacks.wait(stacks.create(hot({"server": SERVER})), "CREATE_FAILED")
    finally:
        compute.boot_state = ("ACTIVE", "")
    assert "there is no kernel in the image" in stack.stack_status_reason


def test_user_data_that_nova_would_refuse_fails_the_stack(compute: Any, stacks: Any) -> None:
    big = {**SERVER, "properties": {**SERVER["properties"], "user_data": "x" * 49153}}
    stack = stacks.wait(stacks.create(hot({"server": big}), name="too-big"), "CREATE_FAILED")
    assert "User data must be no larger than 65535 bytes once base64 encoded" in (
        stack.stack_status_reason
    )
    assert "Your data is 65540 bytes" in stack.stack_status_reason
    assert "too-big" not in {spec.stack_name for spec in compute.specs.values()}


def test_deployment_group_and_dependent_inputs(cloud: Any, compute: Any, stacks: Any) -> None:
    software = {
        **SERVER,
        "properties": {**SERVER["properties"], "user_data_format": "SOFTWARE_CONFIG"},
    }
    template = hot(
        {
            "one": software,
            "config": {
                "type": "OS::Heat::StructuredConfig",
                "properties": {
                    "config": {"key": {"get_input": "word"}},
                    "inputs": [{"name": "word"}],
                },
            },
            "group": {
                "type": "OS::Heat::StructuredDeploymentGroup",
                "properties": {
                    "config": ref("config"),
                    "servers": {"0": ref("one")},
                    "input_values": {"word": "first"},
                    "signal_transport": "NO_SIGNAL",
                },
            },
        }
    )
    stack_id = stacks.create(template)
    server_id = booted(stacks, compute, stack_id)
    stacks.wait(stack_id, "CREATE_COMPLETE")
    with guest(cloud, server_id) as vm:
        cfn = vm.cfn_init_data()["os-collect-config"]["cfn"]
        assert poll_for_deployment(vm, cfn)["config"] == {"key": "first"}


def test_events_list_the_resources(cloud: Any, stacks: Any) -> None:
    stack_id = stacks.create(hot({"word": {"type": "OS::Heat::RandomString"}}))
    stacks.wait(stack_id, "CREATE_COMPLETE")
    resources = [
        (event.detail["resource"], event.detail["action"], event.detail["status"])
        for event in cloud.events
        if event.source == "stack" and event.detail["stack_id"] == stack_id
    ]
    assert ("word", "CREATE", "COMPLETE") in resources
    assert resources[-1][1:] == ("CREATE", "COMPLETE")


def named_server(**properties: object) -> dict[str, Any]:
    always = {"image": "cirros", "flavor": "m9.odd", "user_data_format": "RAW"}
    return {"type": "OS::Nova::Server", "properties": {**always, **properties}}


OWN_PORT = {"networks": [{"port": ref("port")}]}
NAMES_OF_ANOTHER_CLOUD: dict[str, dict[str, Any]] = {
    "flavor": {"server": named_server()},
    "key pair": {"server": named_server(key_name="mykey")},
    "network": {"server": named_server(networks=[{"network": "test-net"}])},
    "network by id": {
        "server": named_server(networks=[{"network": "7a7ae3e3-2f6e-4d53-8f0f-9d8a2f0a3c11"}])
    },
    "address": {
        "server": named_server(networks=[{"network": "private", "fixed_ip": "10.11.12.5"}])
    },
    "subnet": {"server": named_server(networks=[{"subnet": "my-subnet"}])},
    "security group": {"server": named_server(security_groups=["default", "web"])},
    "zone": {"server": named_server(availability_zone="az1", networks=[{"network": "private"}])},
    "port": {
        "port": by_name("OS::Neutron::Port", network="private", security_groups=["web"]),
        "server": named_server(**OWN_PORT),
    },
    "port on a subnet": {
        "port": by_name(
            "OS::Neutron::Port", network="private", fixed_ips=[{"subnet": "private-subnet"}]
        ),
        "server": named_server(**OWN_PORT),
    },
    "floating address": {
        "port": by_name("OS::Neutron::Port", network="private"),
        "server": named_server(**OWN_PORT),
        "address": by_name(
            "OS::Neutron::FloatingIP",
            floating_network="ext-net",
            port_id=ref("port"),
        ),
    },
    "router": {
        "router": by_name("OS::Neutron::Router", external_gateway_info={"network": "ext-net"})
    },
}


@pytest.mark.parametrize(
    "resources", NAMES_OF_ANOTHER_CLOUD.values(), ids=list(NAMES_OF_ANOTHER_CLOUD)
)
def test_names_of_the_template_s_own_cloud_are_accepted(
    stacks: Any, resources: dict[str, Any]
) -> None:
    """A template cannot say which of its names are those of the cloud that it was written for."""
    stacks.wait(stacks.create(hot(resources)), "CREATE_COMPLETE")
