"""Option that lifts the limits of a real cloud's requests."""

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


def test_token_post_too_large_for_a_real_cloud_is_read(cloud: Any) -> None:
    body = json.dumps({"auth": {"x": "x" * limits.KEYSTONE_BODY}})
    with guest(cloud, "large") as vm:
        # Not 413: it was read, and is invalid.
        assert vm.request("POST", TOKENS, data=body).status_code == 400


@pytest.mark.parametrize(
    ("how", "size"),
    [
        ("CFN_SIGNAL", limits.JSON_BODY),
        ("HEAT_SIGNAL", limits.JSON_BODY),
        ("ZAQAR_SIGNAL", limits.ZAQAR_POST),
    ],
)
def test_result_too_large_for_a_real_cloud_is_accepted(
    cloud: Any, compute: Any, stacks: Any, tmp_path: Path, how: str, size: int
) -> None:
    held, vm, inputs, stack_id = deployment(cloud, compute, stacks, tmp_path, how)
    with held:
        taken = signal(vm, inputs, result(size))
        assert taken is not None
        assert taken.ok, taken.text
        stacks.wait(stack_id, "CREATE_COMPLETE")
