"""The specs that Nova passes to a compute: their storage, and the parts of their user data."""

from __future__ import annotations

import json
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import pytest
from hypothesis import given, strategies

from hotplate.cloud.nova.compute import PortAddress, ServerPort, ServerSpec, user_data_parts
from hotplate.events.kinds import UserDataParts

PORT = ServerPort(
    id="8f2a",
    network_id="77aa",
    network_name="private",
    mac="fa:16:3e:00:00:05",
    addresses=(
        PortAddress(
            address="10.0.0.5",
            subnet_id="91bc",
            cidr="10.0.0.0/24",
            gateway="10.0.0.1",
            host_routes=(("192.168.7.0/24", "10.0.0.9"),),
            name_servers=("10.0.0.3",),
            dhcp_server="10.0.0.254",
        ),
        PortAddress("10.1.0.5", "a001", "10.1.0.0/24", enable_dhcp=False),
    ),
    names=("web",),
    mtu=1400,
)


def test_server_with_ports_survives_json() -> None:
    spec = ServerSpec(id="1", name="web", user_data=b"\x00\xff", ports=(PORT,))
    kept = json.loads(json.dumps(spec.to_json()))
    assert ServerSpec.from_json(kept) == spec


def test_spec_stored_without_ports_is_read() -> None:
    kept = ServerSpec(id="1", name="web").to_json()
    del kept["ports"]
    assert ServerSpec.from_json(kept).ports == ()


def test_user_data_parts_are_listed():
    message = MIMEMultipart()
    for name in ("cloud-config", "cfn-init-data"):
        part = MIMEText("x")
        part.add_header("Content-Disposition", "attachment", filename=name)
        message.attach(part)
    assert user_data_parts(message.as_bytes()).parts == ["cloud-config", "cfn-init-data"]


@pytest.mark.parametrize(
    ("text", "not_a_script"),
    [("", False), ("#!/bin/sh\n", False), ("#cloud-config\n", True), ("echo\n", True)],
)
def test_text_that_heat_cannot_run_is_told_from_a_script(text, not_a_script):
    assert bool(user_data_parts(whole(cfn_userdata=text)).not_a_script) is not_a_script


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\necho\n", b"\x1f\x8b\x00\xff"])
def test_other_user_data_has_no_parts(data):
    assert user_data_parts(data) == UserDataParts([], [], [])


def whole(**parts):
    message = MIMEMultipart()
    for name, text in parts.items():
        part = MIMEText(text, "plain", "utf-8")
        part.add_header("Content-Disposition", "attachment", filename=name.replace("_", "-"))
        message.attach(part)
    return message.as_bytes()


@pytest.mark.parametrize(
    ("section", "sources"),
    [
        ({"cfn": {"metadata_url": "http://169.254.169.254:8000/v1/"}}, ["cfn"]),
        # Heat leaves the keys of a transport that is no longer used, without values.
        ({"cfn": {"metadata_url": None}, "request": {"metadata_url": "http://x/"}}, ["request"]),
        ({"collectors": ["ec2", "local"]}, []),
        ({"heat": {"user_id": "u"}}, ["heat"]),
        ({"zaqar": {"queue_id": "q"}}, ["zaqar"]),
    ],
)
def test_poll_sources_are_read(section, sources):
    data = whole(cfn_init_data=json.dumps({"os-collect-config": section, "deployments": []}))
    assert user_data_parts(data).sources == sources


@pytest.mark.parametrize("text", ["[]", "{", '{"os-collect-config": []}', "x"])
def test_odd_init_data_has_no_source(text):
    assert user_data_parts(whole(cfn_init_data=text)).sources == []


def test_handles_are_found_in_user_data():
    stack = "1f3a5d0e-77aa-4b6e-9d0a-3a1d6c1f0b11"
    arn = f"arn%3Aopenstack%3Aheat%3A%3At1%3Astacks/web/{stack}/resources/handle"
    url = f"http://169.254.169.254:8004/v1/t1/stacks/web/{stack}/resources/other/signal"
    data = whole(user_data=f"curl -X PUT 'http://x/v1/waitcondition/{arn}?Signature=S'\ncurl {url}")
    description = user_data_parts(data)
    assert description.handles == [f"{stack}/handle", f"{stack}/other"]
    assert "Signature" not in str(description)


@given(strategies.binary(max_size=300), strategies.text(max_size=200))
def test_any_user_data_can_be_described(data, text):
    for each in (data, whole(cfn_init_data=text), b"MIME-Version: 1.0\n" + data):
        assert set(user_data_parts(each).detail()) == {"parts", "sources", "handles"}
