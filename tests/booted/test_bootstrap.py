"""A booted guest without cloud-init, whose metadata the element's own program applies."""

from __future__ import annotations

import pytest

from hotplate.plugin.pool import LocalPlatform
from hotplate.plugin.server import ServerUnderTest
from hotplate.testbed import first_boot

pytestmark = pytest.mark.boots


def metadata_requests(testbed, since=0):
    return [
        event.detail["path"]
        for event in testbed.events.since(since)
        if event.source == "metadata" and event.kind == "request"
    ]


def test_first_boot_without_cloud_init_applies_the_metadata(testbed):
    guest = ServerUnderTest(LocalPlatform(testbed, first_boot.boot(testbed)))
    assert guest.run("command -v cloud-init").rc != 0
    assert guest.run("stat -c %a /var/lib/heat-cfntools").text == "700"
    assert guest.run("stat -c %a /var/lib/heat-cfntools/cfn-init-data").text == "600"
    name = testbed.servers[-1].spec.name
    assert guest.run("cat /proc/sys/kernel/hostname").text == name
    keys = "".join(f"{key}\n" for key in testbed.servers[-1].spec.public_keys.values())
    assert guest.run("cat /root/.ssh/authorized_keys").text == keys.strip()
    assert guest.run("systemctl is-failed heat-config-bootstrap").text == "active"
    failed = guest.run("systemctl list-units --failed --no-legend --plain").text
    assert failed == ""
    # systemd found no ordering cycle in the unit's dependencies.
    assert "ordering cycle" not in guest.journal("")
    deployment = guest.deploy(group="script", config="#!/bin/sh\necho first\n")
    assert deployment.wait().status == "COMPLETE"


@pytest.mark.qemu
@pytest.mark.long
def test_second_boot_requests_no_metadata(pool):
    """It knows its instance by the UUID of its board, which in a container is the host's."""
    guest = pool.server()
    before = guest.run("stat -c '%n %Y %i' /var/lib/heat-config-bootstrap/* /etc/hostname").text
    since = len(pool.testbed.events)
    guest.reboot()
    deployment = guest.deploy(group="script", config="#!/bin/sh\necho second\n")
    assert deployment.wait().status == "COMPLETE"
    asked = [
        path for path in metadata_requests(pool.testbed, since) if path.startswith("/openstack")
    ]
    assert asked == []
    after = guest.run("stat -c '%n %Y %i' /var/lib/heat-config-bootstrap/* /etc/hostname").text
    assert after == before
