"""``hotplate hook check`` on our own hooks, each with its real tool.

Those of Ansible, Chef and Salt are checked in their own files, as these checks take long.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hotplate.hookkit import lines

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "hook" / "hooks"
#: By the file of the hook: its tool, by the name of the marker ``tool``.
TOOLS = {"apply_config": "os-apply-config", "puppet": "puppet"}

#: Their tools take no inputs, or do not show them.
UNSEEN_INPUTS = {"inputs", "unicode"}
#: Their tools print little, and never take long.
QUIET = {"large-output", "binary-output", "time-limit", "interruption"}
#: The lines for which a hook's group can have no config.
NOT_TRIED: dict[str, set[str]] = {
    "cfn_init": UNSEEN_INPUTS,
    "puppet": {"large-output", "binary-output"},
    "script": {"missing-tool"},
    "json_file": {"missing-tool"} | UNSEEN_INPUTS | QUIET,
    "hiera": {"missing-tool"} | UNSEEN_INPUTS | QUIET,
    "apply_config": {"failure"} | UNSEEN_INPUTS | QUIET,
    "tmpfiles": UNSEEN_INPUTS | QUIET,
}
#: Exceptions that a tool forces on its hook; its contract file gives the reason.
EXCEPTED = {"puppet": {"own-session"}}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.tool(TOOLS.get(name))] * (name in TOOLS),
        )
        for name in NOT_TRIED
    ],
)
def test_our_hook_keeps_to_the_contract(name, check_hook, hooks_dir: Path, monkeypatch):
    if name == "puppet":
        # What it leaves runs for ten minutes.
        monkeypatch.setattr(lines, "DYING", 0.5)
    hook = EXAMPLE / "tmpfiles.py" if name == "tmpfiles" else f"{name}.py"
    if name == "tmpfiles" and not Path("/usr/bin/systemd-tmpfiles").exists():
        pytest.skip('"systemd-tmpfiles" is not on this host')
    # cfn-init is a program of ours, beside the hooks.
    path = os.pathsep.join([os.environ["PATH"], str(Path(sys.executable).parent), str(hooks_dir)])
    checked = check_hook(hook, PATH=path)
    assert checked.problems == {}
    assert checked.not_tried == NOT_TRIED[name]
    assert checked.excepted == EXCEPTED.get(name, set())
