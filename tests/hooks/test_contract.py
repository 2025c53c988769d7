"""Our own hooks, each with its real tool, are held to the contract by ``hotplate hook check``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "hook" / "hooks"
TOOLS = {"apply_config": "os-apply-config", "ansible": "ansible", "puppet": "puppet"}
"""By the file of the hook: its tool, by the name of the marker ``tool``."""

LONG = {"ansible", "puppet"}
"""Those whose tool takes seconds to start, some fifteen times."""

NOT_TRIED: dict[str, set[str]] = {
    "ansible": {"binary-output"},
    "cfn_init": set(),
    "puppet": {"large-output", "binary-output"},
    "script": {"missing-tool"},
    "json_file": {"large-output", "binary-output", "missing-tool", "time-limit", "interruption"},
    "hiera": {"large-output", "binary-output", "missing-tool", "time-limit", "interruption"},
    "apply_config": {"failure", "large-output", "binary-output", "time-limit", "interruption"},
    "tmpfiles": {"large-output", "binary-output", "time-limit", "interruption"},
}
"""The lines for which a hook's group can have no config."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.tool(TOOLS.get(name))] * (name in TOOLS)
            + [pytest.mark.long] * (name in LONG),
        )
        for name in NOT_TRIED
    ],
)
def test_our_hook_keeps_to_the_contract(name, hooks_dir: Path, tmp_path: Path):
    """Changed files are looked for in a folder of our own: on this host others change theirs."""
    hook = (EXAMPLE if name == "tmpfiles" else hooks_dir) / f"{name}.py"
    if name == "tmpfiles" and not Path("/usr/bin/systemd-tmpfiles").exists():
        pytest.skip('"systemd-tmpfiles" is not on this host')
    beside = str(Path(sys.executable).parent)
    command = [sys.executable, "-m", "hotplate", "hook", "check", "--json"]
    done = subprocess.run(
        [*command, "--changes-in", str(tmp_path), str(hook)],
        # cfn-init is a program of ours, beside the hooks.
        env={**os.environ, "PATH": os.pathsep.join([os.environ["PATH"], beside, str(hooks_dir)])},
        capture_output=True,
        timeout=900,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    lines = json.loads(done.stdout)["lines"]
    assert {each["name"]: each["faults"] for each in lines if each["faults"]} == {}
    assert {each["name"] for each in lines if each["state"] == "not tried"} == NOT_TRIED[name]
