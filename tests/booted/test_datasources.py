"""Metadata from drives and from EC2's service, with cloud-init and without.

``test_end_to_end.py`` has it from a config drive too, and all other tests from Nova's service.
"""

from __future__ import annotations

import json
import re

import pytest

pytestmark = [
    pytest.mark.qemu,
    pytest.mark.boots,
    pytest.mark.long,
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
    "ec2": ("e24cloud", r"DataSourceEc2"),
    "nocloud": ("nocloud", r"DataSourceNoCloud .*/dev/vdb"),
}


@pytest.fixture
def template(tmp_path):
    path = tmp_path / "source.json"
    path.write_text(json.dumps(TEMPLATE))
    return path


@pytest.mark.parametrize("source", SOURCES)
def test_cloud_init_finds_each_data_source(source, bookworm, template, test_image):
    done = test_image(bookworm, "--datasource", source, "-t", template)
    assert done.verdict["status"] == "CREATE_COMPLETE", done.stdout
    cloud_id, used = SOURCES[source]
    assert done.verdict["outputs"]["cloud_id"].strip() == cloud_id
    assert re.search(used, done.verdict["outputs"]["source"])


def test_bootstrap_finds_a_config_drive(without_cloud_init, template, test_image):
    """tests/hooks/test_bootstrap.py has the other drives, and EC2's service."""
    done = test_image(without_cloud_init, "--datasource", "config-drive", "-t", template)
    assert done.verdict["status"] == "CREATE_COMPLETE", done.stdout
    assert done.verdict["outputs"]["cloud_id"] == "none"
