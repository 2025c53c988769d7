"""A cloud that is told to lifts the limits of a real one's requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from test_hostile_guest import TOKENS, deployment, result
from test_transports import signal
from wire_guest import guest

from hotplate.cloud.http import limits
from hotplate.cloud.options import CloudOptions


@pytest.fixture(scope="module")
def cloud_options() -> CloudOptions:
    return CloudOptions(lift_limits=True)


def test_a_token_post_that_a_real_cloud_refuses_is_read(cloud: Any) -> None:
    body = json.dumps({"auth": {"x": "x" * limits.KEYSTONE_BODY}})
    with guest(cloud, "large") as vm:
        # Not 413: it was read, and makes no sense.
        assert vm.request("POST", TOKENS, data=body).status_code == 400


@pytest.mark.parametrize(
    ("how", "size"),
    [
        ("CFN_SIGNAL", limits.JSON_BODY),
        ("HEAT_SIGNAL", limits.JSON_BODY),
        ("ZAQAR_SIGNAL", limits.ZAQAR_POST),
    ],
)
def test_a_result_that_a_real_cloud_refuses_is_taken(
    cloud: Any, compute: Any, stacks: Any, tmp_path: Path, how: str, size: int
) -> None:
    held, vm, inputs, stack_id = deployment(cloud, compute, stacks, tmp_path, how)
    with held:
        taken = signal(vm, inputs, result(size))
        assert taken is not None
        assert taken.ok, taken.text
        stacks.wait(stack_id, "CREATE_COMPLETE")
