"""Polling and signal transports in booted guests, one of each row and column.

tests/cloud/ runs the whole matrix on the host, with the same agent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from hotplate.stacks.stack import Stack
from hotplate.stacks.template import load

pytestmark = pytest.mark.boots

SECONDS = 600.0
TWO_SERVERS = Path(__file__).parent / "templates" / "two-servers.yaml"

#: By polling transport: the signal transports of its deployments.
PAIRS = {
    "POLL_SERVER_CFN": ("CFN_SIGNAL", "TEMP_URL_SIGNAL"),
    "POLL_SERVER_HEAT": ("HEAT_SIGNAL",),
    "POLL_TEMP_URL": ("ZAQAR_SIGNAL",),
    "ZAQAR_MESSAGE": ("NO_SIGNAL", "CFN_SIGNAL"),
}

#: By polling transport: the service, the method, and a part of the path.
POLLS = {
    "POLL_SERVER_CFN": ("cfn", "GET", "/v1/"),
    "POLL_SERVER_HEAT": ("heat", "GET", "/metadata"),
    "POLL_TEMP_URL": ("swift", "GET", "/v1/AUTH_"),
    "ZAQAR_MESSAGE": ("zaqar", "", "/v2/queues/"),
}

SIGNALS = {
    "CFN_SIGNAL": ("cfn", "POST", "/signal/"),
    "TEMP_URL_SIGNAL": ("swift", "PUT", "/v1/AUTH_"),
    "HEAT_SIGNAL": ("heat", "POST", "/signal"),
    "ZAQAR_SIGNAL": ("zaqar", "POST", "/messages"),
}


def make_template(polling: str, signals: tuple[str, ...]) -> dict[str, object]:
    """Return a template of one polling server with a deployment per signal transport."""
    resources: dict[str, object] = {
        "server": {
            "type": "OS::Nova::Server",
            "properties": {
                "image": "the image under test",
                "flavor": "m1.small",
                "user_data_format": "SOFTWARE_CONFIG",
                "software_config_transport": polling,
            },
        },
        "config": {
            "type": "OS::Heat::SoftwareConfig",
            "properties": {
                "group": "script",
                "inputs": [{"name": "way"}],
                "outputs": [{"name": "said"}],
                "config": (
                    "#!/bin/sh\n"
                    'echo "transports: $way ran" > /dev/console\n'
                    'printf "by %s" "$way" > "$heat_outputs_path.said"\n'
                ),
            },
        },
    }
    for number, signal in enumerate(signals):
        resources[signal.lower()] = {
            "type": "OS::Heat::SoftwareDeployment",
            "properties": {
                "config": {"get_resource": "config"},
                "server": {"get_resource": "server"},
                "signal_transport": signal,
                # The guest gets the deployments in the order of their names.
                "name": f"{number}-{signal}",
                "input_values": {"way": signal},
            },
        }
    sent = [signal for signal in signals if signal != "NO_SIGNAL"]
    return {
        "heat_template_version": "2018-08-31",
        "resources": resources,
        "outputs": {each: {"value": {"get_attr": [each.lower(), "said"]}} for each in sent},
    }


def seen(requests: Iterable[Mapping], service: str, method: str, part: str) -> bool:
    """Return True when a guest sent such a request and got an answer."""
    return any(
        each["source"] == service
        and each["detail"]["side"] == "guest"
        and each["detail"]["method"].startswith(method)
        and part in each["detail"]["path"]
        and 200 <= each["detail"]["status"] < 300
        for each in requests
    )


@pytest.mark.parametrize("polling", PAIRS)
def test_guest_polls_and_signals_by_each_transport(
    polling, without_cloud_init, test_image, tmp_path
):
    signals = PAIRS[polling]
    template = tmp_path / "transports.json"
    template.write_text(json.dumps(make_template(polling, signals)))
    done = test_image(without_cloud_init, "-t", template)
    assert done.verdict["status"] == "CREATE_COMPLETE", done.stdout
    sent = [signal for signal in signals if signal != "NO_SIGNAL"]
    assert done.verdict["outputs"] == {signal: f"by {signal}" for signal in sent}
    assert all(f"transports: {signal} ran" in done.console for signal in signals)
    lines = (done.folder / "requests.jsonl").read_text().splitlines()
    requests = [json.loads(line) for line in lines]
    assert seen(requests, *POLLS[polling]), requests
    for signal in sent:
        assert seen(requests, *SIGNALS[signal]), signal


@pytest.mark.both_machines
def test_two_servers_exchange_outputs_by_each_transport(testbed_of, without_cloud_init):
    """The first changes its transports twice; the second is told by messages each time.

    Heat makes the first one's user, which the other transports need too, with a password only when
    it begins with Heat's own API.
    """
    testbed = testbed_of(without_cloud_init)
    stack: Stack | None = None
    for polls, signals in (
        ("POLL_SERVER_HEAT", "HEAT_SIGNAL"),
        ("POLL_SERVER_CFN", "TEMP_URL_SIGNAL"),
        ("POLL_TEMP_URL", "ZAQAR_SIGNAL"),
    ):
        since = len(testbed.events)
        given = {"word": signals, "first_polls": polls, "first_signals": signals}
        if stack is None:
            template = load(TWO_SERVERS, parameters={**given, "second_polls": "ZAQAR_MESSAGE"})
            stack = Stack.create(testbed.cloud, template)
        else:
            stack.update(parameters=given)
        assert stack.wait(seconds=SECONDS).state == "COMPLETE", stack
        outputs = stack.outputs
        first, second = outputs["first_id"], outputs["second_id"]
        assert outputs["answer"] == f"{second} heard: {signals} of {first}"
        events = [each for each in testbed.events.since(since) if each.kind == "request"]
        by_first, by_second = (
            [asdict(each) for each in events if each.server == server] for server in (first, second)
        )
        assert seen(by_first, *POLLS[polls]), by_first
        assert seen(by_first, *SIGNALS[signals]), by_first
        assert seen(by_second, *POLLS["ZAQAR_MESSAGE"]), by_second
        assert seen(by_second, *SIGNALS["CFN_SIGNAL"]), by_second
