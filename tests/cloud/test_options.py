"""Options of a cloud: limits that are lifted, signatures that expire, and an environment."""

from __future__ import annotations

import json
from typing import Any

import pytest
from recording_cloud import attribute, hot, resource
from test_hostile_guest import TOKENS, deployment, result
from test_software_config import TEMPLATE, booted, inputs_of, poll_for_deployment
from test_transports import signal
from wire_guest import describe, guest

from hotplate.cloud.http import limits
from hotplate.cloud.options import CloudOptions


@pytest.fixture(scope="module")
def cloud_options(tmp_path_factory: pytest.TempPathFactory) -> CloudOptions:
    directory = tmp_path_factory.mktemp("options")
    inner = directory / "inner.yaml"
    inner.write_text(
        "heat_template_version: 2018-08-31\n"
        "resources:\n  r: {type: OS::Heat::RandomString}\n"
        "outputs:\n  word: {value: global}\n"
    )
    environments = directory / "environment.d"
    environments.mkdir()
    (environments / "mine.yaml").write_text(
        f'resource_registry:\n  "OS::NestedServer": "file://{inner}"\n'
    )
    return CloudOptions(lift_limits=True, signature_ttl=900, environment_dir=environments)


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
    cloud: Any, compute: Any, stacks: Any, how: str, size: int
) -> None:
    with deployment(cloud, compute, stacks, how) as (vm, inputs, stack_id):
        taken = signal(vm, inputs, result(size))
        assert taken is not None
        assert taken.ok, taken.text
        stacks.wait(stack_id, "CREATE_COMPLETE")


def test_signature_expires_when_a_ttl_is_set(cloud: Any, compute: Any, stacks: Any) -> None:
    stack_id = stacks.create(TEMPLATE)
    with guest(cloud, booted(stacks, compute, stack_id)) as vm:
        cfn = vm.cfn_init_data()["os-collect-config"]["cfn"]
        url = inputs_of(poll_for_deployment(vm, cfn))["deploy_signal_id"]
        with cloud.fault(endpoint="cfn", kind="skew", delay=901):
            assert vm.request("POST", url, json={}).status_code == 403
            # A poll has no time stamp of its own, so it never expires.
            assert describe(vm, cfn).status_code == 200
        assert vm.request("POST", url, json={}).status_code == 200
        assert describe(vm, cfn, Timestamp="2001-01-01T00:00:00Z").status_code == 403


def test_environment_applies_to_every_stack(stacks: Any) -> None:
    stack_id = stacks.complete(
        hot({"word": attribute("one", "word")}, one=resource("NestedServer"))
    )
    assert stacks.outputs(stack_id) == {"word": "global"}
