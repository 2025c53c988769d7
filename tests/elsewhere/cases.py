"""A template with one server and one deployment, and guests for it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml
from played_guest import Guest

TEMPLATE: dict[str, Any] = {
    "heat_template_version": "2018-08-31",
    "parameters": {"word": {"type": "string", "default": "hello", "hidden": True}},
    "resources": {
        "config": {
            "type": "OS::Heat::SoftwareConfig",
            "properties": {
                "group": "script",
                "inputs": [{"name": "word"}],
                "outputs": [{"name": "size"}],
                "config": "#!/bin/sh\n",
            },
        },
        "server": {
            "type": "OS::Nova::Server",
            "properties": {
                "name": "web",
                "image": "some image",
                "flavor": "m1.small",
                "user_data_format": "SOFTWARE_CONFIG",
            },
        },
        "deployment": {
            "type": "OS::Heat::SoftwareDeployment",
            "properties": {
                "config": {"get_resource": "config"},
                "server": {"get_resource": "server"},
                "input_values": {"word": {"get_param": "word"}},
            },
        },
    },
    "outputs": {"size": {"value": {"get_attr": ["deployment", "size"]}}},
}
GOOD = Guest(answers={"deployment": {"size": "6", "deploy_status_code": 0}})
HANGS = Guest(hangs=("deployment",))


def written(folder: Path, *, resources: dict[str, Any] | None = None) -> Path:
    template = copy.deepcopy(TEMPLATE)
    template["resources"].update(resources or {})
    path = folder / "template.yaml"
    path.write_text(yaml.safe_dump(template))
    return path
