"""A script deployment over the real wire: user data, signed polls, signed signals."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from recording_cloud import Stacks, attribute, hot, ref, resource
from wire_guest import Guest, collect, describe, guest

from hotplate.timing.deadline import Deadline, retry

TEMPLATE = hot(
    {
        "result": attribute("deployment", "result"),
        "stdout": attribute("deployment", "deploy_stdout"),
        "status_code": attribute("deployment", "deploy_status_code"),
    },
    config=resource(
        "Heat::SoftwareConfig",
        group="script",
        config="#!/bin/sh\necho hello\n",
        inputs=[{"name": "greeting"}],
        outputs=[{"name": "result"}],
    ),
    deployment=resource(
        "Heat::SoftwareDeployment",
        config=ref("config"),
        server=ref("server"),
        input_values={"greeting": "hello"},
    ),
    server=resource(
        "Nova::Server",
        image="any",
        flavor="any",
        key_name="demo-key",
        user_data_format="SOFTWARE_CONFIG",
    ),
)


def metadata_of(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"].startswith("application/xml")
    assert not response.text.startswith("<?xml")
    text = ET.fromstring(response.text).findtext(
        "DescribeStackResourceResult/StackResourceDetail/Metadata"
    )
    assert text is not None
    metadata: dict[str, Any] = json.loads(text)
    return metadata


def inputs_of(deployment: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item["value"] for item in deployment["inputs"]}


def booted(stacks: Any, compute: Any, stack_id: str) -> str:
    """Return the id of the server that the stack booted."""
    name = stacks.client.stacks.get(stack_id).stack_name

    def look(_: bool) -> str | None:
        specs = list(compute.specs.values())
        return next((spec.id for spec in specs if spec.stack_name == name), None)

    return retry(look, Deadline(120, "the server to boot"), every=0.05)


def poll_for_deployment(guest: Guest, cfn: dict[str, str], action: str = "") -> dict[str, Any]:
    """Return the first deployment, once Heat serves one for the action if it is given."""

    def look(_: bool) -> dict[str, Any] | None:
        served = metadata_of(describe(guest, cfn))["deployments"]
        return next((each for each in served if action in inputs_of(each)["deploy_action"]), None)

    return retry(look, Deadline(120, f"a deployment {action}"))


def test_script_deployment_completes(cloud: Any, compute: Any, stacks: Any, tmp_path: Path) -> None:
    stack_id = stacks.create(TEMPLATE)
    server_id = booted(stacks, compute, stack_id)
    with guest(cloud, server_id) as vm:
        cfn = vm.cfn_init_data()["os-collect-config"]["cfn"]
        assert cfn["metadata_url"] == "http://169.254.169.254:8000/v1/"
        deployment = poll_for_deployment(vm, cfn)
        assert deployment["group"] == "script"
        inputs = inputs_of(deployment)
        assert inputs["greeting"] == "hello"
        assert inputs["deploy_server_id"] == server_id

        # The real agent reads the same.
        collected = collect(vm, tmp_path / "occ", cfn, "cfn")
        assert collected.deployments("cfn") == [deployment], collected.errors

        response = vm.request(
            inputs["deploy_signal_verb"],
            inputs["deploy_signal_id"],
            headers={"Content-Type": "application/json"},
            data=json.dumps(
                {"deploy_stdout": "out", "deploy_status_code": 0, "result": "fine", "more": 1}
            ),
        )
        assert (response.status_code, response.content) == (200, b"")
        stacks.wait(stack_id, "CREATE_COMPLETE")
    assert stacks.outputs(stack_id) == {"result": "fine", "stdout": "out", "status_code": 0}


@pytest.fixture(scope="module")
def polled(cloud: Any, compute: Any) -> Iterator[tuple[Guest, dict[str, str]]]:
    """Return a guest, and the settings of its polls."""
    stacks = Stacks(cloud)
    with guest(cloud, booted(stacks, compute, stacks.create(TEMPLATE))) as vm:
        yield vm, vm.cfn_init_data()["os-collect-config"]["cfn"]
    stacks.clean()


def test_wrong_secret_is_refused(
    cloud: Any, polled: tuple[Guest, dict[str, str]], tmp_path: Path
) -> None:
    vm, cfn = polled
    wrong = {**cfn, "secret_access_key": "0" * 32}
    response = describe(vm, wrong)
    assert response.status_code == 403
    error = ET.fromstring(response.text)
    assert error.tag == "ErrorResponse"
    assert error.findtext("Error/Code") == "AccessDenied"
    assert collect(vm, tmp_path / "occ", wrong, "cfn").documents.get("cfn") is None
    refused = [
        event
        for event in cloud.events
        if event.source == "cfn" and event.detail.get("status") == 403
    ]
    assert refused
    assert refused[0].detail["action"] == "DescribeStackResource"


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"LogicalResourceId": "nothing"}, 403, "AccessDenied"),
        ({"StackName": "nothing"}, 400, "InvalidParameterValue"),
        ({"AWSAccessKeyId": "0" * 32}, 403, "AccessDenied"),
    ],
)
def test_invalid_poll_is_refused(
    polled: tuple[Guest, dict[str, str]], change: dict[str, str], status: int, code: str
) -> None:
    response = describe(*polled, **change)
    assert response.status_code == status, response.text
    assert ET.fromstring(response.text).findtext("Error/Code") == code


def test_events_contain_no_secrets(cloud: Any, compute: Any, stacks: Any) -> None:
    stack_id = stacks.create(TEMPLATE)
    with guest(cloud, booted(stacks, compute, stack_id)) as vm:
        cfn = vm.cfn_init_data()["os-collect-config"]["cfn"]
        deployment = poll_for_deployment(vm, cfn)
        vm.request("POST", inputs_of(deployment)["deploy_signal_id"])
        stacks.wait(stack_id, "CREATE_COMPLETE")
        details = json.dumps([event.detail for event in cloud.events])
        assert cfn["secret_access_key"] not in details
        assert cfn["access_key_id"] not in details
        assert "Signature=" not in details


# -- the stdin of a hook, which is shown on a page of the documentation --------------------

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "examples" / "hook" / "deployment.json"

INPUTS: dict[str, tuple[str, Any]] = {
    "who": ("String", "world"),
    "a_number": ("Number", 7),
    "a_list": ("CommaDelimitedList", ["a", "b"]),
    "a_map": ("Json", {"key": {"inner": [1, None]}}),
    "a_boolean": ("Boolean", True),
}

SCRIPT = '#!/bin/sh\necho "hello $who"\necho "$who" > $heat_outputs_path.greeted\n'

STDIN_TEMPLATE = hot(
    config=resource(
        "Heat::SoftwareConfig",
        group="script",
        config=SCRIPT,
        options={"timeout": 60},
        inputs=[{"name": name, "type": kind} for name, (kind, _) in INPUTS.items()],
        outputs=[{"name": "greeted"}],
    ),
    deployment=resource(
        "Heat::SoftwareDeployment",
        name="greeting",
        config=ref("config"),
        server=ref("server"),
        input_values={name: value for name, (_, value) in INPUTS.items()},
    ),
    server=TEMPLATE["resources"]["server"],
)

#: Pattern of a varying value -> its placeholder, numbered by distinct value.
CHANGES = {
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}": "6f1c0000-0000-4000-8000-0000000000{:02}",
    r"(?<=%3A)[0-9a-f]{32}(?=%3A)": "0123456789abcdef01234567890000{:02}",
    r"AWSAccessKeyId=[^&\"]+": "AWSAccessKeyId=ACCESS-KEY",
    r"Timestamp=[^&\"]+": "Timestamp=2026-01-02T03%3A04%3A05Z",
    r"Signature=[^&\"]+": "Signature=SIGNATURE",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ": "2026-01-02T03:04:05Z",
    r"(?<![\w-])test-\d+(?=/)": "my-stack",
}


def same_each_time(text: str) -> str:
    """Replace values that differ in each run."""
    for pattern, made in CHANGES.items():
        seen = dict.fromkeys(re.findall(pattern, text))
        for number, each in enumerate(seen, 1):
            text = text.replace(each, made.format(number))
    return text


@pytest.fixture
def read_by_the_hook(cloud: Any, compute: Any, stacks: Any, tmp_path: Path) -> str:
    """Return a hook's stdin for a deployment that Heat serves and the runner passes on."""
    with guest(cloud, booted(stacks, compute, stacks.create(STDIN_TEMPLATE))) as vm:
        cfn = vm.cfn_init_data()["os-collect-config"]["cfn"]
        deployment = poll_for_deployment(vm, cfn)
    hook = tmp_path / "hooks" / "script"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ncat > {tmp_path}/stdin\n")
    hook.chmod(0o755)
    (tmp_path / "document").write_text(json.dumps([deployment]))
    places = {"DEPLOYED": "deployed", "LOGS": "log", "CONSOLE": "console", "HOOKS": "hooks"}
    environ = {f"HEAT_CONFIG_{name}": str(tmp_path / each) for name, each in places.items()}
    environ |= {"PATH": os.environ["PATH"], "HEAT_CONFIG_LIB": str(ROOT / "hooks")}
    # No signal is to be sent: the program for it does nothing.
    environ |= {"HEAT_CONFIG_NOTIFY": "/bin/true", "HEAT_SHELL_CONFIG": f"{tmp_path}/document"}
    runner = [sys.executable, "-IS", str(ROOT / "hooks" / "55-heat-config")]
    subprocess.run(runner, env=environ, check=True, timeout=300, capture_output=True)
    return (tmp_path / "stdin").read_text()


def test_docs_page_shows_the_whole_stdin(read_by_the_hook: str) -> None:
    shown = same_each_time(json.dumps(json.loads(read_by_the_hook), indent=2) + "\n")
    assert PAGE.read_text() == shown, f"{PAGE} has to be:\n{shown}"
