"""Where guests have no ports, Heat tells no address that a guest does not have."""

from __future__ import annotations

from typing import Any

import pytest
from test_templates import hot


@pytest.fixture(scope="module")
def compute(recording_compute: Any) -> Any:
    recording_compute.networked = False
    return recording_compute


def test_a_server_has_the_one_address_of_its_machine(cloud: Any, stacks: Any, compute: Any) -> None:
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
    assert values["networks"]["hotplate"] == ["169.254.169.15"]
    assert values["whole"]["hotplate"][0]["addr"] == "169.254.169.15"
    (spec,) = compute.specs.values()
    assert spec.ports == ()
    assert "OS::Neutron::Port" in {each.kind for each in cloud.stand_ins(made)}
