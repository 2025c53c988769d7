"""What the cloud's QEMU machines are told, without one."""

from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText

import pytest

from hotplate.testbed import qemu_compute


def test_the_parts_of_user_data():
    message = MIMEMultipart()
    for name in ("cloud-config", "cfn-init-data"):
        part = MIMEText("x")
        part.add_header("Content-Disposition", "attachment", filename=name)
        message.attach(part)
    assert qemu_compute.user_data_parts(message.as_bytes()) == ["cloud-config", "cfn-init-data"]


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\necho\n", b"\x1f\x8b\x00\xff"])
def test_other_user_data_has_no_parts(data):
    assert qemu_compute.user_data_parts(data) == []
