"""The Heat template of one deployment; tests/plugin tries it against Heat."""

import dataclasses

import pytest

from hotplate.events.kinds import ServiceRequest
from hotplate.events.log import EventLog
from hotplate.stacks.deployment import Deployment, DeploymentSpec
from hotplate.stacks.stack import Stack


def resources(spec):
    return spec.template("server-id").template["resources"]


def test_text_is_a_software_config():
    made = resources(DeploymentSpec("script", "#!/bin/sh\n", inputs={"n": 3}, outputs=["out"]))
    assert made["config"] == {
        "type": "OS::Heat::SoftwareConfig",
        "properties": {
            "group": "script",
            "config": "#!/bin/sh\n",
            "inputs": [{"name": "n", "type": "Number"}],
            "outputs": [{"name": "out"}],
            "options": {},
        },
    }
    assert made["deployment"] == {
        "type": "OS::Heat::SoftwareDeployment",
        "properties": {
            "config": {"get_resource": "config"},
            "server": "server-id",
            "signal_transport": "CFN_SIGNAL",
            "input_values": {"n": 3},
            "actions": ["CREATE", "UPDATE"],
        },
    }


def test_map_is_a_structured_config():
    made = resources(DeploymentSpec("hiera", {"a": {"b": "c"}}))
    assert made["config"]["type"] == "OS::Heat::StructuredConfig"
    assert made["config"]["properties"]["config"] == {"a": {"b": "c"}}
    assert made["deployment"]["type"] == "OS::Heat::StructuredDeployment"


def test_component_takes_its_actions_from_its_configs():
    configs = [{"actions": ["CREATE"], "config": "true\n", "tool": "script"}]
    made = resources(DeploymentSpec("component", configs, name="both"))
    assert made["config"]["type"] == "OS::Heat::SoftwareComponent"
    assert made["config"]["properties"]["configs"] == configs
    assert made["deployment"]["type"] == "OS::Heat::SoftwareDeployment"
    assert made["deployment"]["properties"]["name"] == "both"
    assert "actions" not in made["deployment"]["properties"]


def test_outputs_accept_heat_maps():
    made = resources(DeploymentSpec("script", "", outputs=[{"name": "e", "error_output": True}]))
    assert made["config"]["properties"]["outputs"] == [{"name": "e", "error_output": True}]


def test_spec_is_frozen_and_replaced():
    spec = DeploymentSpec("script", "")
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.config = "other"
    assert dataclasses.replace(spec, config="other").group == "script"


class NoCloud:
    def heat(self):
        return None


class MadeStack:
    name = "stack-1"
    state = "FAILED"

    def __str__(self):
        return "CREATE_FAILED: the script ended with 3"


def test_failed_assertion_shows_the_status(monkeypatch):
    """pytest shows the ``repr()`` for ``assert ..., done``, which was an address in memory."""
    monkeypatch.setattr(Stack, "create", lambda cloud, template, **more: MadeStack())
    done = Deployment(NoCloud(), "server-id", DeploymentSpec("script", "exit 3\n"))
    with pytest.raises(AssertionError) as failed:
        assert done.status == "COMPLETE", done
    assert "script: CREATE_FAILED: the script ended with 3" in str(failed.value)


def test_signal_that_is_being_answered_is_waited_for(monkeypatch):
    """Heat ends the stack as soon as it has the signal, whose request is in the log only then."""

    class LateLog(EventLog):
        def settle(self):
            path = "/v1/signal/arn/stacks/stack-1/id/resources/deployment"
            self.add(ServiceRequest("POST", path, 200, side="guest"), source="cfn", server="web")
            return True

    class OneCloud(NoCloud):
        events = LateLog()

    monkeypatch.setattr(Stack, "create", lambda cloud, template, **more: MadeStack())
    done = Deployment(OneCloud(), "web", DeploymentSpec("script", "exit 3\n"))
    assert len(done.signals) == 1
