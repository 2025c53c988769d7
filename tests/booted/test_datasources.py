"""Metadata from each data source of cloud-init, and in images without cloud-init."""

from __future__ import annotations

import json
import re

import pytest

from hotplate.plugin.pool import LocalPlatform
from hotplate.plugin.server import ServerUnderTest
from hotplate.testbed.first_boot import boot

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.boots,
    pytest.mark.long,
    pytest.mark.xdist_group("datasources"),
]

# The guest reports where its metadata came from.
TEMPLATE = {
    "heat_template_version": "2018-08-31",
    "resources": {
        "server": {
            "type": "OS::Nova::Server",
            "properties": {
                "image": "the image under test",
                "flavor": "m1.small",
                "user_data_format": "SOFTWARE_CONFIG",
            },
        },
        "config": {
            "type": "OS::Heat::SoftwareConfig",
            "properties": {
                "group": "script",
                "outputs": [{"name": "cloud_id"}, {"name": "source"}],
                "config": (
                    "#!/bin/sh\n"
                    "cloud-id > $heat_outputs_path.cloud_id || printf none > "
                    "$heat_outputs_path.cloud_id\n"
                    "cp /var/lib/cloud/instance/datasource $heat_outputs_path.source\n"
                    "exit 0\n"
                ),
            },
        },
        "deployment": {
            "type": "OS::Heat::SoftwareDeployment",
            "properties": {
                "config": {"get_resource": "config"},
                "server": {"get_resource": "server"},
            },
        },
    },
    "outputs": {
        name: {"value": {"get_attr": ["deployment", name]}} for name in ("cloud_id", "source")
    },
}

#: By data source: the output of `cloud-id` and the class that cloud-init recorded.
SOURCES = {
    "openstack": ("openstack", r"DataSourceOpenStack"),
    "ec2": ("e24cloud", r"DataSourceEc2"),
    "config-drive": ("configdrive", r"DataSourceConfigDrive .*\[source=/dev/vdb\]"),
    "config-drive-vfat": ("configdrive", r"DataSourceConfigDrive .*\[source=/dev/vdb1\]"),
    "nocloud": ("nocloud", r"DataSourceNoCloud .*/dev/vdb"),
}


@pytest.fixture
def template(tmp_path):
    path = tmp_path / "source.json"
    path.write_text(json.dumps(TEMPLATE))
    return path


@pytest.mark.parametrize("source", ["ec2", "config-drive-vfat"])
def test_cloud_init_finds_the_default_data_source(source, trixie, template, test_image):
    done = test_image(trixie, "--datasource", source, "-t", template)
    assert done.verdict["status"] == "CREATE_COMPLETE", done.stdout
    cloud_id, used = SOURCES[source]
    assert done.verdict["outputs"]["cloud_id"].strip() == cloud_id
    assert re.search(used, done.verdict["outputs"]["source"])


@pytest.mark.long
@pytest.mark.parametrize("source", SOURCES)
def test_cloud_init_finds_each_data_source(source, bookworm, template, test_image):
    test_cloud_init_finds_the_default_data_source(source, bookworm, template, test_image)


@pytest.mark.long
@pytest.mark.parametrize("source", ["ec2", "config-drive", "config-drive-vfat"])
def test_bootstrap_finds_the_data_source(source, without_cloud_init, template, test_image):
    done = test_image(without_cloud_init, "--datasource", source, "-t", template)
    assert done.verdict["status"] == "CREATE_COMPLETE", done.stdout
    assert done.verdict["outputs"]["cloud_id"] == "none"


# -- a booted guest without cloud-init -------------------------------------------------------------


@pytest.fixture(scope="module")
def guest(testbed) -> ServerUnderTest:
    return ServerUnderTest(LocalPlatform(testbed, boot(testbed)))


def metadata_requests(testbed, since=0):
    return [
        event.detail["path"]
        for event in testbed.events.since(since)
        if event.source == "metadata" and event.kind == "request"
    ]


def test_first_boot_without_cloud_init_applies_the_metadata(guest, testbed):
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


def test_second_boot_requests_no_metadata(guest, testbed):
    before = guest.run("stat -c '%n %Y %i' /var/lib/heat-config-bootstrap/* /etc/hostname").text
    since = len(testbed.events)
    guest.reboot()
    deployment = guest.deploy(group="script", config="#!/bin/sh\necho second\n")
    assert deployment.wait().status == "COMPLETE"
    asked = [path for path in metadata_requests(testbed, since) if path.startswith("/openstack")]
    assert asked == []
    after = guest.run("stat -c '%n %Y %i' /var/lib/heat-config-bootstrap/* /etc/hostname").text
    assert after == before
