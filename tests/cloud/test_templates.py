"""Whole templates: HOT and CFN, nested, grouped, conditional, updated, suspended, stand-ins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from heatclient import exc as heat_exceptions
from heatclient.common import template_utils
from recording_cloud import attribute, hot, ref, resource
from test_software_config import TEMPLATE, booted, inputs_of, poll_for_deployment
from wire_guest import describe, guest

SERVER = resource("Nova::Server", image="img", flavor="flv", user_data_format="RAW")


def write(path: Path, template: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(template))
    return path


def test_missing_services_have_stand_ins(cloud: Any, stacks: Any) -> None:
    resources = {
        "net": resource("Neutron::Net"),
        "subnet": resource("Neutron::Subnet", network=ref("net"), cidr="10.1.0.0/24"),
        "port": resource(
            "Neutron::Port", "subnet", network=ref("net"), security_groups=["default"]
        ),
        "flavor": resource("Nova::Flavor", ram=512, vcpus=1, disk=1),
        "volume": resource("Cinder::Volume", size=1),
        "attachment": resource(
            "Cinder::VolumeAttachment", instance_uuid=ref("server"), volume_id=ref("volume")
        ),
        "key": resource("Nova::KeyPair", name="made-key", save_private_key=True),
        "server": resource(
            "Nova::Server",
            image="CentOS",
            flavor=ref("flavor"),
            key_name=ref("key"),
            networks=[{"port": ref("port")}],
        ),
    }
    outputs = {
        "fixed": attribute("port", "fixed_ips", 0, "ip_address"),
        "addresses": attribute("server", "networks"),
        "whole": attribute("server", "addresses"),
        "server_show": attribute("server", "show"),
        "private": attribute("key", "private_key"),
    }
    stack_id = stacks.complete(hot(outputs, **resources))
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
    write(tmp_path / "child.yaml", hot({"all": attribute("inner", "networks")}, inner=SERVER))
    parent = hot(
        {
            "web": attribute("web", "networks", asked, 0),
            "port": attribute("web", "addresses", asked, 0, "port"),
            "db": attribute("db", "networks"),
            "nested": attribute("nested", "all"),
        },
        web=SERVER,
        db=SERVER,
        nested={"type": "child.yaml"},
    )
    parent["parameters"] = {"net": {"type": "string", "default": "lan-of-theirs"}}
    files, body = template_utils.get_template_contents(str(write(tmp_path / "t.yaml", parent)))
    stack_id = stacks.complete(body, files=dict(files))
    values = stacks.outputs(stack_id)
    assert values["web"].startswith("10.")
    assert values["port"]
    assert "lan-of-theirs" in values["db"]
    assert "lan-of-theirs" in values["nested"]
    assert "lan-of-theirs" in {each.name for each in cloud.taken_for_granted()}


@pytest.mark.parametrize("name", ["public", "hotplate"])
def test_server_without_networks_is_on_the_default_one(stacks: Any, name: str) -> None:
    """No server can have an address on the network of the way out."""
    read, whole = attribute("web", "networks", name, 0), attribute("web", "networks")
    stack_id = stacks.complete(hot({"a": read, "all": whole}, web=SERVER))
    assert "hotplate" in stacks.outputs(stack_id)["all"]


def test_aws_instance_has_volumes(stacks: Any) -> None:
    """Heat attaches them by Nova, and asks Cinder whether it has."""
    attached = {"VolumeId": ref("volume"), "Device": "/dev/vdc"}
    resources = {
        "volume": resource("AWS::EC2::Volume", Size=1, AvailabilityZone="nova"),
        "server": resource("AWS::EC2::Instance", ImageId="i", InstanceType="f", Volumes=[attached]),
    }
    stacks.complete(hot(**resources))


def test_stand_ins_may_name_each_other(cloud: Any, stacks: Any) -> None:
    """Heat asks a service about names in a resource, and here there is none to ask."""
    resources = {
        "lb": resource("Octavia::LoadBalancer", vip_subnet="hotplate"),
        "listener": resource(
            "Octavia::Listener",
            loadbalancer=ref("lb"),
            protocol="HTTP",
            protocol_port=80,
        ),
        "pool": resource(
            "Octavia::Pool",
            listener=ref("listener"),
            lb_algorithm="ROUND_ROBIN",
            protocol="HTTP",
        ),
        "member": resource(
            "Octavia::PoolMember",
            pool=ref("pool"),
            address="10.0.0.9",
            subnet="hotplate",
            protocol_port=80,
        ),
        "monitor": resource(
            "Octavia::HealthMonitor",
            pool=ref("pool"),
            type="TCP",
            delay=5,
            max_retries=3,
            timeout=5,
        ),
        "policy": resource(
            "Octavia::L7Policy",
            listener=ref("listener"),
            action="REDIRECT_TO_POOL",
            redirect_pool=ref("pool"),
        ),
        "rule": resource(
            "Octavia::L7Rule",
            l7policy=ref("policy"),
            type="PATH",
            compare_type="STARTS_WITH",
            value="/",
        ),
        "of_another_cloud": resource(
            "Octavia::Listener", loadbalancer="front", protocol="HTTP", protocol_port=81
        ),
    }
    outputs = {"vip": attribute("lb", "vip_address")}
    stack_id = stacks.complete(hot(outputs, **resources))
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
        return hot(remote=resource("Heat::Stack", **fields))

    with pytest.raises(heat_exceptions.HTTPBadRequest, match="DARKHOLE"):
        stacks.create(outer("DARKHOLE"))
    stacks.complete(outer("RegionOne"))


def test_nested_stacks_are_found_by_registry_and_path(stacks: Any, tmp_path: Path) -> None:
    inner = hot({"word": {"get_param": "word"}}, server=SERVER)
    write(tmp_path / "inner.yaml", {**inner, "parameters": {"word": {"type": "string"}}})
    (tmp_path / "note.txt").write_text("from a file")
    each = {"type": "My::Server", "properties": {"word": "n-%index%"}}
    template = hot(
        {
            "path": attribute("by_path", "word"),
            "name": attribute("by_name", "word"),
            "many": attribute("many", "word"),
        },
        by_path={"type": "inner.yaml", "properties": {"word": {"get_file": "note.txt"}}},
        by_name={"type": "My::Server", "properties": {"word": "registry"}},
        many=resource("Heat::ResourceGroup", count=2, resource_def=each),
    )
    outer = write(tmp_path / "outer.yaml", template)
    environment = tmp_path / "env.yaml"
    environment.write_text("resource_registry:\n  My::Server: inner.yaml\n")
    files, template = template_utils.get_template_contents(str(outer))
    env_files, env = template_utils.process_environment_and_files(str(environment))
    stack_id = stacks.complete(template, files={**files, **env_files}, environment=env)
    assert stacks.outputs(stack_id) == {
        "path": "from a file",
        "name": "registry",
        "many": ["n-0", "n-1"],
    }


def test_conditions_and_parameters(stacks: Any, compute: Any) -> None:
    allowed = [{"allowed_values": ["a", "b"]}]
    template = {
        **hot(always=resource("Heat::RandomString"), some={**SERVER, "condition": "wanted"}),
        "parameters": {"kind": {"type": "string", "constraints": allowed}},
        "conditions": {"wanted": {"equals": [{"get_param": "kind"}, "b"]}},
    }
    for kind in ("a", "b"):
        stacks.complete(template, name=f"cond-{kind}", parameters={"kind": kind})
    assert "cond-a" not in {spec.stack_name for spec in compute.specs.values()}
    assert "cond-b" in {spec.stack_name for spec in compute.specs.values()}
    with pytest.raises(Exception, match="is not an allowed value"):
        stacks.create(template, name="cond-c", parameters={"kind": "c"})


def test_unknown_resource_type_is_a_clear_error(stacks: Any) -> None:
    with pytest.raises(Exception, match="OS::No::Such") as error:
        stacks.create(hot(one=resource("No::Such")))
    assert error.value.code == 400


@pytest.mark.parametrize("kind", ["AWS::CloudFormation", "OS::Heat"])
@pytest.mark.parametrize("status", ["SUCCESS", "FAILURE"])
def test_wait_condition(cloud: Any, compute: Any, stacks: Any, kind: str, status: str) -> None:
    aws = kind.startswith("AWS")
    handle = ref("handle") if aws else attribute("handle", "endpoint")
    timeout, count, name = ("Timeout", "Count", "Handle") if aws else ("timeout", "count", "handle")
    token = "-" if aws else attribute("handle", "token")
    words = {"template": "URL\nTOKEN", "params": {"URL": handle, "TOKEN": token}}
    wait = {name: ref("handle"), timeout: 60, count: 2}
    template = hot(
        {"data": attribute("wait", "Data" if aws else "data")},
        handle=resource(f"{kind}::WaitConditionHandle"),
        wait=resource(f"{kind}::WaitCondition", **wait),
        server=resource("Nova::Server", **SERVER["properties"], user_data={"str_replace": words}),
    )
    stack_id = stacks.create(template)
    with guest(cloud, booted(stacks, compute, stack_id)) as vm:
        url, token = vm.user_data().decode().splitlines()
        for number, word in enumerate(("SUCCESS", status)):
            if aws:
                body = {"Status": word, "Reason": "r", "UniqueId": f"{number}"}
                body["Data"] = f"d{number}"
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


CFN_TEMPLATE = """
HeatTemplateFormatVersion: '2012-12-12'
Resources:
  Handle: {Type: AWS::CloudFormation::WaitConditionHandle}
  Server:
    Type: AWS::EC2::Instance
    Properties:
      InstanceType: m1.small
      ImageId: F17-x86_64-cfntools
      KeyName: heatkey
      UserData: {Fn::Base64: {Fn::Join: ['', ["cfn-signal '", {Ref: Handle}, "'"]]}}
  Wait:
    Type: AWS::CloudFormation::WaitCondition
    DependsOn: Server
    Properties: {Handle: {Ref: Handle}, Timeout: '300'}
Outputs: {Ip: {Value: {Fn::GetAtt: [Server, PublicIp]}}}
"""


def test_cfn_format(cloud: Any, compute: Any, stacks: Any) -> None:
    stack_id = stacks.create(CFN_TEMPLATE)
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
        inputs = inputs_of(poll_for_deployment(vm, cfn, action))
        vm.request("POST", inputs["deploy_signal_id"], json={"result": action})

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
    stacks.delete(stack_id)
    assert server_id not in compute.specs


def test_server_that_does_not_come_up_fails_the_stack(compute: Any, stacks: Any) -> None:
    compute.boot_state = ("ERROR", "there is no kernel in the image")
    try:
        stack = stacks.wait(stacks.create(hot(server=SERVER)), "CREATE_FAILED")
    finally:
        compute.boot_state = ("ACTIVE", "")
    assert "there is no kernel in the image" in stack.stack_status_reason


def test_deployment_group_and_dependent_inputs(cloud: Any, compute: Any, stacks: Any) -> None:
    config = {"key": {"get_input": "word"}}
    template = hot(
        one=named_server(user_data_format="SOFTWARE_CONFIG"),
        config=resource("Heat::StructuredConfig", config=config, inputs=[{"name": "word"}]),
        group=resource(
            "Heat::StructuredDeploymentGroup",
            config=ref("config"),
            servers={"0": ref("one")},
            input_values={"word": "first"},
            signal_transport="NO_SIGNAL",
        ),
    )
    stack_id = stacks.create(template)
    server_id = booted(stacks, compute, stack_id)
    stacks.wait(stack_id, "CREATE_COMPLETE")
    with guest(cloud, server_id) as vm:
        cfn = vm.cfn_init_data()["os-collect-config"]["cfn"]
        assert poll_for_deployment(vm, cfn)["config"] == {"key": "first"}


def test_events_list_the_resources(cloud: Any, stacks: Any) -> None:
    stack_id = stacks.complete(hot(word=resource("Heat::RandomString")))
    resources = [
        (event.detail["resource"], event.detail["action"], event.detail["status"])
        for event in cloud.events
        if event.source == "stack" and event.detail["stack_id"] == stack_id
    ]
    assert ("word", "CREATE", "COMPLETE") in resources
    assert resources[-1][1:] == ("CREATE", "COMPLETE")


def named_server(**properties: object) -> dict[str, Any]:
    always = {"image": "cirros", "flavor": "m9.odd", "user_data_format": "RAW"}
    return resource("Nova::Server", **{**always, **properties})


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
        "port": resource("Neutron::Port", network="private", security_groups=["web"]),
        "server": named_server(**OWN_PORT),
    },
    "port on a subnet": {
        "port": resource(
            "Neutron::Port", network="private", fixed_ips=[{"subnet": "private-subnet"}]
        ),
        "server": named_server(**OWN_PORT),
    },
    "floating address": {
        "port": resource("Neutron::Port", network="private"),
        "server": named_server(**OWN_PORT),
        "address": resource(
            "Neutron::FloatingIP",
            floating_network="ext-net",
            port_id=ref("port"),
        ),
    },
    "router": {"router": resource("Neutron::Router", external_gateway_info={"network": "ext-net"})},
}


@pytest.mark.parametrize(
    "resources", NAMES_OF_ANOTHER_CLOUD.values(), ids=list(NAMES_OF_ANOTHER_CLOUD)
)
def test_names_of_the_template_s_own_cloud_are_accepted(
    stacks: Any, resources: dict[str, Any]
) -> None:
    """A template cannot say which of its names are those of the cloud that it was written for."""
    stacks.complete(hot(**resources))
