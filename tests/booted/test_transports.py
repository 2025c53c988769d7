"""Polling and signal transports in booted guests, one of each row and column.

tests/cloud/ runs the whole matrix on the host, with the same agent.
"""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.both_machines, pytest.mark.boots]

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


def seen(requests: list[dict], service: str, method: str, part: str) -> bool:
    """Return True when the guest sent such a request and got an answer."""
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
    (log,) = (done.folder / "servers").glob("*/console.log")
    console = log.read_text(errors="replace")
    assert all(f"transports: {signal} ran" in console for signal in signals)
    lines = (done.folder / "requests.jsonl").read_text().splitlines()
    requests = [json.loads(line) for line in lines]
    assert seen(requests, *POLLS[polling]), requests
    for signal in sent:
        assert seen(requests, *SIGNALS[signal]), signal
