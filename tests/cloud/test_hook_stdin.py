"""A hook's stdin from the real Heat and the real runner is the same as on the docs page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_software_config import booted, poll_for_deployment
from wire_guest import guest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "examples" / "hook" / "deployment.json"

INPUTS: dict[str, tuple[str, Any]] = {
    "who": ("String", "world"),
    "a_number": ("Number", 7),
    "a_list": ("CommaDelimitedList", ["a", "b"]),
    "a_map": ("Json", {"key": {"inner": [1, None]}}),
    "a_boolean": ("Boolean", True),
}

SCRIPT = '#!/bin/sh\necho "hello $who"\necho "$who" > $heat_outputs_path.greeted\n'

TEMPLATE: dict[str, Any] = {
    "heat_template_version": "2018-08-31",
    "resources": {
        "config": {
            "type": "OS::Heat::SoftwareConfig",
            "properties": {
                "group": "script",
                "config": SCRIPT,
                "options": {"timeout": 60},
                "inputs": [{"name": name, "type": kind} for name, (kind, _) in INPUTS.items()],
                "outputs": [{"name": "greeted"}],
            },
        },
        "deployment": {
            "type": "OS::Heat::SoftwareDeployment",
            "properties": {
                "name": "greeting",
                "config": {"get_resource": "config"},
                "server": {"get_resource": "server"},
                "input_values": {name: value for name, (_, value) in INPUTS.items()},
            },
        },
        "server": {
            "type": "OS::Nova::Server",
            "properties": {
                "image": "any",
                "flavor": "any",
                "user_data_format": "SOFTWARE_CONFIG",
            },
        },
    },
}

CHANGES = {
    r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}": "6f1c0000-0000-4000-8000-0000000000{:02}",
    r"(?<=%3A)[0-9a-f]{32}(?=%3A)": "0123456789abcdef01234567890000{:02}",
    r"AWSAccessKeyId=[^&\"]+": "AWSAccessKeyId=ACCESS-KEY",
    r"Timestamp=[^&\"]+": "Timestamp=2026-01-02T03%3A04%3A05Z",
    r"Signature=[^&\"]+": "Signature=SIGNATURE",
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ": "2026-01-02T03:04:05Z",
    r"(?<![\w-])test-\d+(?=/)": "my-stack",
}
"""Pattern of a varying value -> its placeholder, numbered by distinct value."""


def same_each_time(text: str) -> str:
    """Replace values that differ in each run."""
    for pattern, made in CHANGES.items():
        seen = dict.fromkeys(re.findall(pattern, text))
        for number, each in enumerate(seen, 1):
            text = text.replace(each, made.format(number))
    return text


@pytest.fixture
def read_by_the_hook(cloud: Any, compute: Any, stacks: Any, tmp_path: Path) -> str:
    """Return a hook's stdin for a deployment that Heat serves and the runner passes on."""
    with guest(cloud, booted(stacks, compute, stacks.create(TEMPLATE))) as vm:
        cfn = vm.cfn_init_data()["os-collect-config"]["cfn"]
        deployment = poll_for_deployment(vm, cfn)
    hook = tmp_path / "hooks" / "script"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ncat > {tmp_path}/stdin\n")
    hook.chmod(0o755)
    (tmp_path / "document").write_text(json.dumps([deployment]))
    places = {"DEPLOYED": "deployed", "LOGS": "log", "CONSOLE": "console", "HOOKS": "hooks"}
    environ = {f"HEAT_CONFIG_{name}": str(tmp_path / each) for name, each in places.items()}
    environ |= {"PATH": os.environ["PATH"], "HEAT_CONFIG_LIB": str(ROOT / "hooks")}
    # No signal is to be sent: the program for it does nothing.
    environ |= {"HEAT_CONFIG_NOTIFY": "/bin/true", "HEAT_SHELL_CONFIG": f"{tmp_path}/document"}
    runner = [sys.executable, "-IS", str(ROOT / "hooks" / "55-heat-config")]
    subprocess.run(runner, env=environ, check=True, timeout=60, capture_output=True)
    return (tmp_path / "stdin").read_text()


def test_docs_page_shows_the_whole_stdin(read_by_the_hook: str) -> None:
    shown = same_each_time(json.dumps(json.loads(read_by_the_hook), indent=2) + "\n")
    assert PAGE.read_text() == shown, f"{PAGE} has to be:\n{shown}"
