"""A template with one server and one deployment, and guests for it."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path
from typing import Any

import yaml
from played_guest import Guest
from recording_cloud import attribute, hot, ref, resource

TEMPLATE: dict[str, Any] = {
    **hot(
        {"size": attribute("deployment", "size")},
        config=resource(
            "Heat::SoftwareConfig",
            group="script",
            inputs=[{"name": "word"}],
            outputs=[{"name": "size"}],
            config="#!/bin/sh\n",
        ),
        server=resource(
            "Nova::Server",
            name="web",
            image="some image",
            flavor="m1.small",
            user_data_format="SOFTWARE_CONFIG",
        ),
        deployment=resource(
            "Heat::SoftwareDeployment",
            config=ref("config"),
            server=ref("server"),
            input_values={"word": {"get_param": "word"}},
        ),
    ),
    "parameters": {"word": {"type": "string", "default": "hello", "hidden": True}},
}
GOOD = Guest(answers={"deployment": {"size": "6", "deploy_status_code": 0}})
HANGS = Guest(hangs=("deployment",))


def written(folder: Path, *, resources: dict[str, Any] | None = None) -> Path:
    template = copy.deepcopy(TEMPLATE)
    template["resources"].update(resources or {})
    path = folder / "template.yaml"
    path.write_text(yaml.safe_dump(template))
    return path


def expecting(folder: Path, **expect: Any) -> Path:
    """Write an expect file for the template."""
    written(folder)
    path = folder / "expect.yaml"
    path.write_text(yaml.safe_dump({"template": "template.yaml", "expect": expect}))
    return path


def ends(
    done: subprocess.CompletedProcess[str], status: int, *says: str
) -> subprocess.CompletedProcess[str]:
    """Check a run's status, and what its last line (of a usage error: its errors) says."""
    said = done.stderr if status == 2 else "".join(done.stdout.rstrip().splitlines()[-1:])
    missing = [each for each in says if each not in said]
    assert (done.returncode, missing) == (status, []), done.stdout + done.stderr
    return done
