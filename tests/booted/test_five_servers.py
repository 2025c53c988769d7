"""Five servers of a ResourceGroup, one SoftwareDeploymentGroup to all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotplate.stacks.stack import Stack
from hotplate.stacks.template import load

pytestmark = [pytest.mark.boots, pytest.mark.tool("dnsmasq")]
SECONDS = 3600


def test_each_server_of_a_group_gets_one_deployment(testbed_of, without_cloud_init) -> None:
    testbed = testbed_of(without_cloud_init, memory=512)
    stack = Stack.create(
        testbed.cloud, load(Path(__file__).parent / "templates" / "five.yaml"), name="five"
    )
    stack.wait(seconds=SECONDS)
    assert stack.status == "CREATE_COMPLETE", stack.reason
    assert len({*stack.outputs["addresses"]}) == 5
    assert stack.outputs["reached"] == {str(number): "5" for number in range(5)}
    assert stack.outputs["codes"] == {str(number): 0 for number in range(5)}
