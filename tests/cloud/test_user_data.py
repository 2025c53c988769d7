"""The description of a server's user data."""

import json
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import pytest
from hypothesis import given, strategies

from hotplate.cloud.nova.compute import user_data_parts
from hotplate.events.kinds import UserDataParts


def test_user_data_parts_are_listed():
    message = MIMEMultipart()
    for name in ("cloud-config", "cfn-init-data"):
        part = MIMEText("x")
        part.add_header("Content-Disposition", "attachment", filename=name)
        message.attach(part)
    assert user_data_parts(message.as_bytes()).parts == ["cloud-config", "cfn-init-data"]


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
