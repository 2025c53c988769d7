"""Signals by hand: curl and the real clients on the host, with the addresses from Heat."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from heatclient import client as heat_client
from keystoneauth1 import session
from keystoneauth1.identity import v3
from recording_cloud import attribute, hot, ref, resource
from test_software_config import booted, inputs_of
from test_transports import all_signals
from zaqarclient.queues import client as zaqar_client

from hotplate.cloud.cloud import Cloud
from hotplate.cloud.http import limits
from hotplate.timing.deadline import Deadline, retry

RESULT = {"deploy_stdout": "by hand", "deploy_status_code": 0, "result": "fine"}

Curl = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def proxied(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the proxy in the environment, as ``hotplate up`` prints it, and no other."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("http_proxy", cloud.proxy)


@pytest.fixture
def curl(proxied: None) -> Curl:
    """Run curl, which prints the status below the body."""

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        command = ["curl", "-sS", "-m", "120", "-w", "\n%{http_code}", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, text=True)

    return run


def by_curl(inputs: dict[str, Any]) -> None:
    """Send a signal to the address in the deployment's inputs."""
    subprocess.run(
        [
            *("curl", "-sSf", "-m", "120", "-X", inputs["deploy_signal_verb"]),
            *("-H", "Content-Type: application/json", "--data-binary", json.dumps(RESULT)),
            inputs["deploy_signal_id"],
        ],
        check=True,
        capture_output=True,
    )


def with_credentials(inputs: dict[str, Any]) -> session.Session:
    """Log in with the address and the credentials in the deployment's inputs."""
    auth = v3.Password(
        auth_url=inputs["deploy_auth_url"],
        user_id=inputs["deploy_user_id"],
        password=inputs["deploy_password"],
        project_id=inputs["deploy_project_id"],
    )
    return session.Session(auth=auth)


def by_heatclient(inputs: dict[str, Any]) -> None:
    client = heat_client.Client("1", session=with_credentials(inputs))
    client.resources.signal(inputs["deploy_stack_id"], inputs["deploy_resource_name"], RESULT)


def by_zaqarclient(inputs: dict[str, Any]) -> None:
    client = zaqar_client.Client(version=2, session=with_credentials(inputs))
    queue = client.queue(inputs["deploy_queue_id"], auto_create=False)
    queue.post({"ttl": 600, "body": RESULT})


BY_HAND = {
    "CFN_SIGNAL": by_curl,
    "TEMP_URL_SIGNAL": by_curl,
    "HEAT_SIGNAL": by_heatclient,
    "ZAQAR_SIGNAL": by_zaqarclient,
}


@pytest.mark.usefixtures("proxied")
def test_signals_by_hand_complete_deployments(cloud: Cloud, compute: Any, stacks: Any) -> None:
    stack_id = stacks.create(all_signals("POLL_SERVER_HEAT"))
    server_id = booted(stacks, compute, stack_id)

    def handed_out(_last: bool) -> dict[str, Any] | None:
        each = map(inputs_of, cloud.heat().software_deployments.metadata(server_id=server_id))
        by_signal = {inputs["deploy_signal_transport"]: inputs for inputs in each}
        return by_signal if set(BY_HAND) <= set(by_signal) else None

    inputs = retry(handed_out, Deadline(120, "the deployments to be handed out"), every=0.05)
    for how, send in BY_HAND.items():
        send(inputs[how])
    stacks.wait(stack_id, "CREATE_COMPLETE")
    outputs = stacks.outputs(stack_id)
    assert {how: outputs[how] for how in BY_HAND} == {how: ["fine", "by hand"] for how in BY_HAND}


@pytest.mark.usefixtures("proxied")
@pytest.mark.parametrize(
    ("status", "ended"), [("SUCCESS", "CREATE_COMPLETE"), ("FAILURE", "CREATE_FAILED")]
)
def test_curl_cli_signals_a_wait_condition(stacks: Any, status: str, ended: str) -> None:
    stack_id = stacks.create(
        hot(
            {"curl_cli": attribute("handle", "curl_cli"), "data": attribute("condition", "data")},
            handle=resource("Heat::WaitConditionHandle"),
            condition=resource("Heat::WaitCondition", handle=ref("handle"), timeout=600),
        )
    )
    stacks.wait_for_resource(stack_id, "handle", "CREATE_COMPLETE")
    command = stacks.outputs(stack_id)["curl_cli"]
    body = json.dumps({"status": status, "reason": "by hand", "data": "done", "id": "1"})
    # As pasted into a shell.
    answered = subprocess.run(
        ["sh", "-c", f"{command} -sSf --data-binary '{body}'"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "204 No Content" in answered.stdout or "200 OK" in answered.stdout, answered.stdout
    if ended == "CREATE_COMPLETE":
        stacks.wait(stack_id, ended)
        assert json.loads(stacks.outputs(stack_id)["data"]) == {"1": "done"}
    else:
        assert "by hand" in stacks.wait(stack_id, ended).stack_status_reason


def test_cloudformation_handle_is_signalled(curl: Curl, stacks: Any) -> None:
    stack_id = stacks.create(
        {
            "HeatTemplateFormatVersion": "2012-12-12",
            "Resources": {
                "Handle": {"Type": "AWS::CloudFormation::WaitConditionHandle"},
                "Condition": {
                    "Type": "AWS::CloudFormation::WaitCondition",
                    "Properties": {"Handle": {"Ref": "Handle"}, "Timeout": "600"},
                },
            },
            "Outputs": {"url": {"Value": {"Ref": "Handle"}}},
        }
    )
    stacks.wait_for_resource(stack_id, "Handle", "CREATE_COMPLETE")

    def signed(_last: bool) -> str | None:
        # Heat shows "None" for a moment after the handle is complete.
        shown = str(stacks.outputs(stack_id)["url"])
        return shown if shown != "None" else None

    url = retry(signed, Deadline(120, "the handle's address"), every=0.05)
    assert url.startswith("http://169.254.169.254:8000/v1/waitcondition/")
    body = json.dumps({"Status": "SUCCESS", "Reason": "by hand", "Data": "done", "UniqueId": "1"})
    changed = curl("-X", "PUT", "-H", "Content-Type: application/json", "-d", body, url + "x")
    assert changed.stdout.endswith("403"), changed
    sent = curl("-X", "PUT", "-H", "Content-Type: application/json", "-d", body, url)
    assert sent.stdout.endswith("200"), sent
    stacks.wait(stack_id, "CREATE_COMPLETE")


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("http://169.254.169.254/latest/meta-data/", "The metadata service answers guests alone"),
        ("http://example.invalid/", 'not to "example.invalid"'),
        ("http://169.254.169.254:8774/", 'not to "169.254.169.254:8774"'),
        ("http://127.0.0.1:1/", 'not to "127.0.0.1:1"'),
    ],
)
def test_proxy_refuses_other_addresses(curl: Curl, url: str, sentence: str) -> None:
    answer = curl(url)
    assert answer.stdout.endswith("403"), answer
    assert sentence in answer.stdout


def test_proxy_refuses_tunnels(curl: Curl, cloud: Cloud) -> None:
    answer = curl("--proxytunnel", "http://169.254.169.254:8004/")
    assert (answer.returncode, answer.stdout.strip()) == (56, "000"), answer
    straight = curl("--noproxy", "*", cloud.proxy + "/v1/")
    assert straight.stdout.endswith("403")


def test_body_limit_is_that_of_the_service(curl: Curl) -> None:
    url = "http://169.254.169.254:5000/v3/auth/tokens"
    body = json.dumps({"auth": "x" * limits.KEYSTONE_BODY})
    answer = curl("-H", "Expect:", "-X", "POST", "--data-binary", "@-", url, stdin=body)
    assert answer.stdout.endswith("413"), answer
