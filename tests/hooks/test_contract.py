"""``hotplate hook check`` on our own hooks, each with its real tool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

CHEF = Path(__file__).with_name("chef_stand_in.py")
EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "hook" / "hooks"
#: By the file of the hook: its tool, by the name of the marker ``tool``.
TOOLS = {"apply_config": "os-apply-config", "ansible": "ansible", "puppet": "puppet"}

#: The lines for which a hook's group can have no config.
NOT_TRIED: dict[str, set[str]] = {
    "ansible": {"binary-output"},
    "cfn_init": set(),
    "puppet": {"large-output", "binary-output"},
    "salt": {"large-output", "binary-output"},
    "script": {"missing-tool"},
    "json_file": {"large-output", "binary-output", "missing-tool", "time-limit", "interruption"},
    "hiera": {"large-output", "binary-output", "missing-tool", "time-limit", "interruption"},
    "apply_config": {"failure", "large-output", "binary-output", "time-limit", "interruption"},
    "tmpfiles": {"large-output", "binary-output", "time-limit", "interruption"},
}


#: By the config that runs it; the stub of Chef takes Python.
#:
#: A recipe, which is not a config, finds the FIFO of ``hotplate hook check`` here.
RECIPES = {
    "ok": "print('done')",
    "inputs": (
        "for name, value in node.items():\n"
        "    if name.startswith(('a_', 'an_')):\n"
        "        text = value if isinstance(value, str) else __import__('json').dumps(value)\n"
        "        with open(os.environ['heat_outputs_path'] + '.' + name, 'w') as file:\n"
        "            file.write(text)\n"
    ),
    "large": "print('x' * 3_000_000)",
    "binary": "os.write(1, b'\\377\\376')",
    "slow": (
        "import time\n"
        "ready = os.path.join(os.environ['HEAT_CONFIG_CAPTURE'], '..', '..', 'ready')\n"
        "open(os.path.normpath(ready), 'w').write('x')\n"
        "time.sleep(600)\n"
    ),
}


#: Exceptions that a tool forces on its hook; its contract file gives the reason.
EXCEPTED = {
    "ansible": {"words-on-stdout"},
    "puppet": {"own-session"},
    "salt": set(),
}


@pytest.fixture
def check(tmp_path: Path):
    """Check a hook against the contract, with more folders on PATH; return its lines.

    Changed files are searched in a folder of our own: other programs on this host change theirs.
    """

    def run(hook, *folders, words=()):
        (tmp_path / "nothing").mkdir()
        path = os.pathsep.join([os.environ["PATH"], *map(str, folders)])
        command = [sys.executable, "-m", "hotplate", "hook", "check", "--json", "--timeout", "300"]
        done = subprocess.run(
            [*command, "--changes-in", tmp_path / "nothing", *words, hook],
            env={**os.environ, "PATH": path},
            capture_output=True,
            timeout=1500,
            check=False,
        )
        assert done.returncode in (0, 1), done.stderr
        return json.loads(done.stdout)["lines"]

    return run


def problems(lines):
    return {
        each["name"]: [fault["reason"] for fault in each["faults"]]
        for each in lines
        if each["faults"]
    }


def not_tried(lines):
    return {each["name"] for each in lines if each["state"] == "not tried"}


def excepted(lines):
    return {name for each in lines for name in each["excepted"]}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.tool(TOOLS.get(name))] * (name in TOOLS),
        )
        for name in NOT_TRIED
        if name != "salt"
    ],
)
def test_our_hook_keeps_to_the_contract(name, check, hooks_dir: Path):
    hook = (EXAMPLE if name == "tmpfiles" else hooks_dir) / f"{name}.py"
    if name == "tmpfiles" and not Path("/usr/bin/systemd-tmpfiles").exists():
        pytest.skip('"systemd-tmpfiles" is not on this host')
    # cfn-init is a program of ours, beside the hooks.
    lines = check(hook, Path(sys.executable).parent, hooks_dir)
    assert problems(lines) == {}
    assert not_tried(lines) == NOT_TRIED[name]
    assert excepted(lines) == EXCEPTED.get(name, set())


@pytest.mark.tool("salt")
def test_salt_keeps_to_the_contract(check, salt_call, hooks_dir: Path):
    lines = check(hooks_dir / "salt.py", Path(salt_call).parent)
    assert problems(lines) == {}
    assert not_tried(lines) == NOT_TRIED["salt"]
    assert excepted(lines) == EXCEPTED["salt"]


def test_chef_keeps_to_the_contract(check, hooks_dir: Path, tmp_path: Path):
    """With the stub of Chef, which no package index has; see docs/defects.rst."""
    programs = tmp_path / "programs"
    programs.mkdir()
    program = programs / "cinc-client"
    program.write_text(f"#!{sys.executable}\n{CHEF.read_text()}")
    program.chmod(0o755)
    recipes = tmp_path / "kitchen" / "cookbooks" / "demo" / "recipes"
    recipes.mkdir(parents=True)
    for name, text in RECIPES.items():
        (recipes / f"{name}.rb").write_text(text)
    contract = {
        "tool": "cinc-client",
        "options": {"kitchen_path": str(tmp_path / "kitchen")},
        "configs": {name: [f"recipe[demo::{name}]"] for name in RECIPES},
        "exceptions": {
            "words-on-stdout": "Chef prints there why it fails",
            "ignores-sigterm": "Chef goes on when it is asked to end in mid-converge",
        },
    }
    contract["configs"]["fails"] = ["recipe[demo::fails]", "role[@word@]"]
    (tmp_path / "contract.yaml").write_text(yaml.safe_dump(contract))
    lines = check(hooks_dir / "chef.py", programs, words=["--contract", tmp_path / "contract.yaml"])
    assert problems(lines) == {}
    assert not_tried(lines) == set()
    assert excepted(lines) == {"words-on-stdout", "ignores-sigterm"}
