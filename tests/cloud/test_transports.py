"""The matrix of poll and signal transports.

Polls use the unmodified agent's own collectors, signals the notifier in our images.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import requests
from recording_cloud import attribute
from test_software_config import TEMPLATE, booted, inputs_of, poll_for_deployment
from wire_guest import Guest, collect, guest, notify

from hotplate.timing.deadline import Deadline, retry

POLLS = {
    "POLL_SERVER_CFN": "cfn",
    "POLL_SERVER_HEAT": "heat",
    "POLL_TEMP_URL": "request",
    "ZAQAR_MESSAGE": "zaqar",
}
SIGNALS = ("CFN_SIGNAL", "TEMP_URL_SIGNAL", "HEAT_SIGNAL", "ZAQAR_SIGNAL", "NO_SIGNAL")
RESULT = {"deploy_stdout": "out", "deploy_stderr": "", "deploy_status_code": 0, "result": "fine"}


def token(vm: Guest, inputs: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Return a token with a deployment's own credentials, and the catalogue's public URLs."""
    response = vm.request(
        "POST",
        inputs["deploy_auth_url"] + "/auth/tokens",
        json={
            "auth": {
                "identity": {
                    "methods": ["password"],
                    "password": {
                        "user": {
                            "id": inputs["deploy_user_id"],
                            "password": inputs["deploy_password"],
                        }
                    },
                },
                "scope": {"project": {"id": inputs["deploy_project_id"]}},
            }
        },
    )
    assert response.status_code == 201, response.text
    urls = {
        entry["type"]: endpoint["url"]
        for entry in response.json()["token"]["catalog"]
        for endpoint in entry["endpoints"]
        if endpoint["interface"] == "public"
    }
    return response.headers["X-Subject-Token"], urls


def signal(vm: Guest, inputs: dict[str, Any], result: dict[str, Any]) -> requests.Response | None:
    """Send ``result`` according to the deployment's inputs."""
    transport = inputs["deploy_signal_transport"]
    if transport == "NO_SIGNAL":
        return None
    if transport in ("CFN_SIGNAL", "TEMP_URL_SIGNAL"):
        return vm.request(
            inputs["deploy_signal_verb"],
            inputs["deploy_signal_id"],
            headers={"Content-Type": "application/json"},
            data=json.dumps(result),
        )
    made, urls = token(vm, inputs)
    headers = {"X-Auth-Token": made}
    if transport == "HEAT_SIGNAL":
        url = (
            f"{urls['orchestration']}/stacks/{inputs['deploy_stack_id']}"
            f"/resources/{inputs['deploy_resource_name']}/signal"
        )
        return vm.request("POST", url, headers=headers, json=result)
    return vm.request(
        "POST",
        f"{urls['messaging']}/v2/queues/{inputs['deploy_queue_id']}/messages",
        headers={
            **headers,
            "Client-ID": "12345678-1234-1234-1234-123456789abc",
            "X-Project-Id": inputs["deploy_project_id"],
        },
        json={"messages": [{"ttl": 600, "body": result}]},
    )


def template(poll: str, how: str) -> dict[str, Any]:
    made = copy.deepcopy(TEMPLATE)
    made["resources"]["server"]["properties"]["software_config_transport"] = poll
    made["resources"]["deployment"]["properties"]["signal_transport"] = how
    return made


def collect_deployments(
    vm: Guest, state: Path, section: dict[str, Any], kind: str, count: int = 1
) -> list[dict[str, Any]]:
    """Poll as the agent does until there are that many deployments.

    A poll of a queue gets one message, and Heat posts one for each deployment.
    """

    def poll(last: bool) -> list[dict[str, Any]] | None:
        collected = collect(vm, state, section, kind)
        deployments = collected.deployments(kind)
        done = len(deployments) == count
        assert done or not last, collected
        return deployments if done else None

    return retry(poll, Deadline(300, f"{count} deployments"))


def all_signals(poll: str) -> dict[str, Any]:
    """Return a template of one server with a deployment for each signal transport."""
    made = template(poll, "")
    deployment = made["resources"].pop("deployment")
    made["outputs"] = {}
    for how in SIGNALS:
        made["resources"][how] = copy.deepcopy(deployment)
        made["resources"][how]["properties"].update(signal_transport=how, name=how)
        values = [attribute(how, "result"), attribute(how, "deploy_stdout")]
        made["outputs"][how] = {"value": values}
    return made


@pytest.mark.parametrize("poll", POLLS)
def test_poll_and_each_signal(
    cloud: Any, compute: Any, stacks: Any, tmp_path: Path, poll: str
) -> None:
    kind = POLLS[poll]
    stack_id = stacks.create(all_signals(poll))
    with guest(cloud, booted(stacks, compute, stack_id)) as vm:
        agent = vm.cfn_init_data()["os-collect-config"]
        assert agent["collectors"] == ["ec2", kind, "local"]
        collected = collect_deployments(vm, tmp_path / "occ", agent[kind], kind, len(SIGNALS))
        by_signal = {inputs_of(each)["deploy_signal_transport"]: each for each in collected}
        assert set(by_signal) == set(SIGNALS)
        for how, deployment in by_signal.items():
            reply = notify(vm, tmp_path / "notify", deployment, RESULT)
            assert reply.returncode == 0, (how, reply.stderr)
        stacks.wait(stack_id, "CREATE_COMPLETE")
    outputs = stacks.outputs(stack_id)
    assert outputs.pop("NO_SIGNAL") == [None, None]
    assert outputs == {how: ["fine", "out"] for how in SIGNALS[:-1]}


def test_zaqar_over_a_websocket(cloud: Any, compute: Any, stacks: Any, tmp_path: Path) -> None:
    stack_id = stacks.create(template("ZAQAR_MESSAGE", "NO_SIGNAL"))
    with guest(cloud, booted(stacks, compute, stack_id)) as vm:
        section = vm.cfn_init_data()["os-collect-config"]["zaqar"]
        section = {**section, "use_websockets": True}
        (deployment,) = collect_deployments(vm, tmp_path / "occ", section, "zaqar")
        assert deployment["group"] == "script"
        stacks.wait(stack_id, "CREATE_COMPLETE")


@pytest.mark.parametrize("poll", ["POLL_SERVER_HEAT", "POLL_TEMP_URL", "ZAQAR_MESSAGE"])
def test_wrong_credentials_collect_nothing(
    cloud: Any, compute: Any, stacks: Any, tmp_path: Path, poll: str
) -> None:
    kind = POLLS[poll]
    stack_id = stacks.complete(template(poll, "NO_SIGNAL"))
    with guest(cloud, booted(stacks, compute, stack_id)) as vm:
        section = dict(vm.cfn_init_data()["os-collect-config"][kind])
        if kind == "request":
            section["metadata_url"] = section["metadata_url"].replace(
                "temp_url_sig=", "temp_url_sig=0"
            )
        else:
            section["password"] = "wrong"
        assert kind not in collect(vm, tmp_path / "occ", section, kind).documents
    refused = {event.source for event in cloud.events if event.detail.get("status") == 401}
    assert ("swift" if kind == "request" else "keystone") in refused


@pytest.mark.parametrize("how", SIGNALS[:-1])
def test_failure_is_reported(cloud: Any, compute: Any, stacks: Any, how: str) -> None:
    stack_id = stacks.create(template("POLL_SERVER_CFN", how))
    with guest(cloud, booted(stacks, compute, stack_id)) as vm:
        deployment = poll_for_deployment(vm, vm.cfn_init_data()["os-collect-config"]["cfn"])
        signal(vm, inputs_of(deployment), {**RESULT, "deploy_status_code": 3})
        stack = stacks.wait(stack_id, "CREATE_FAILED")
        assert "non-zero status code: 3" in stack.stack_status_reason
