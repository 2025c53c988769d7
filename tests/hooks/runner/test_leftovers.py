"""Files left by hooks: no input after the hook's end, no file after the deployment is forgotten."""

import os
import signal
from pathlib import Path

import pytest
from programs import program

from .conftest import limits

SECRET = b"hunter2-planted"
GROUPS = {
    "ansible": ("ansible.py", "- hosts: all\n", "HEAT_ANSIBLE_CMD"),
    "salt": ("salt.py", "a:\n  test.nop\n", "HEAT_SALT_CMD"),
    "puppet": ("puppet.py", "notify {'a':}\n", "HEAT_PUPPET_CMD"),
    "chef": ("chef.py", "[]", "HEAT_CHEF_CMD"),
    "cfn-init": ("cfn_init.py", {"config": {"files": {"/x": SECRET.decode()}}}, None),
}


@pytest.fixture
def slow(guest):
    """Every hook with a tool that reports its place, and then takes a minute."""
    tool = program(
        guest.root / "tool",
        'case "$*" in *--version*|*print*) exit 0;; esac\n'
        f"touch {guest.root}/running\ntrap '' TERM\nsleep 60 &\nwait; wait",
    )
    data = guest.root / "data"
    guest.settings.update(
        HEAT_CFN_INIT_CMD=str(tool),
        HEAT_CFN_INIT_LAST_METADATA_DIR=str(data / "cfn"),
        HEAT_PUPPET_HIERA_DATADIR=str(data / "hieradata"),
        HEAT_HIERA_CONFIG=str(data / "hiera.yaml"),
        HEAT_PUPPET_LOGDIR=str(data / "log"),
        HEAT_CHEF_LICENSE="accept",
        HOME=str(guest.root),
    )
    for group, (file, _config, setting) in GROUPS.items():
        guest.real_hook(group, file)
        name = group.upper().replace("-", "_")
        guest.settings[f"HEAT_{name}_WORKING"] = str(data / group)
        guest.settings[f"HEAT_{name}_OUTPUTS"] = str(data / f"{group}-outputs")
        if setting:
            guest.settings[setting] = str(tool)
    return data


def deployment(cfn, group, *, id="d-1", **more):
    return cfn(
        GROUPS[group][1],
        group=group,
        id=id,
        inputs={"password": SECRET.decode()},
        options={"enable_hiera": True, "kitchen": "", **more},
    )


def holders(*directories):
    """Return the files below *directories* that hold the secret.

    A cfn-init other than ours finds its metadata as last_metadata only, and it stays there.
    """
    return [
        path
        for directory in directories
        for path in Path(directory).rglob("*")
        if path.is_file() and path.name != "last_metadata" and SECRET in path.read_bytes()
    ]


@pytest.mark.parametrize("group", GROUPS)
def test_stopped_hook_leaves_no_input(guest, heat, cfn, slow, group):
    for limit in limits(guest.root / "running"):
        heat.requests.clear()
        assert guest.run(deployment(cfn, group, id=f"d-{limit}", timeout=limit)).status == 0
    assert heat.signals[0]["deploy_status_code"] == 124, heat.signals
    assert (guest.root / "running").exists()
    assert holders(slow, guest.state, guest.logs) == []


@pytest.mark.parametrize("group", GROUPS)
def test_hook_killed_with_its_runner_leaves_no_input(guest, heat, cfn, slow, group, wait_until):
    guest.metadata(deployment(cfn, group))
    process = guest.start()
    wait_until((guest.root / "running").exists)
    hook = int((guest.state / "d-1.pid").read_text().split()[0])
    os.killpg(process.pid, signal.SIGKILL)
    os.killpg(hook, signal.SIGKILL)
    process.communicate(timeout=30)
    assert holders(slow), "nothing to remove would show nothing"
    assert guest.run().status == 0
    assert heat.signals[0]["deploy_status_code"] == 1
    assert holders(slow, guest.state, guest.logs) == []


def test_forgotten_deployment_leaves_no_files(guest, heat, cfn):
    config = f"echo {SECRET.decode()} >$heat_outputs_path.r; echo x >d-1-own; echo y >d-1.own"
    guest.metadata(
        cfn(config, group="script", outputs=["r"]), cfn(config, group="script", id="d-12")
    )
    guest.run()
    work, outputs = guest.root / "script", guest.root / "script-outputs"
    assert len(holders(work, outputs)) == 4
    guest.config.write_text("forget_after = 0\nkeep_logs = 0\n")
    guest.run(cfn(config, group="script", id="d-12"))
    names = {path.name for path in holders(work, outputs)}
    assert names == {"d-12", "d-12.r"}, "those of the other one stay"
    assert (work / "d-1-own").exists(), "what a script made in its directory is its own"
    assert not list(guest.state.glob("d-1.*"))
    assert not list(guest.logs.glob("d-1.*"))


@pytest.mark.parametrize("name", ["d-1.pp", "d-1.sls", "d-1_playbook.yaml", "d-1.hiera.yaml"])
def test_files_named_by_a_deployment_are_removed_with_it(guest, heat, cfn, name):
    """The file names of puppet, salt, ansible and hiera in heat-agents, and once in ours."""
    guest.run(cfn("true", group="script"), cfn("true", group="script", id="d-12"))
    left = guest.root / "script" / name
    other = guest.root / "script" / name.replace("d-1", "d-12")
    for path in (left, other):
        path.write_bytes(SECRET)
    guest.config.write_text("forget_after = 0\n")
    guest.run(cfn("true", group="script", id="d-12"))
    assert (left.exists(), other.exists()) == (False, True)


def test_run_does_not_return_the_outputs_of_the_previous_run(guest, heat, cfn):
    """A file of the first run would be an error_output of the second, which succeeded."""
    config = (
        f"test -e {guest.root}/again && exit 0\ntouch {guest.root}/again\n"
        "echo bad >$heat_outputs_path.problem; exit 1"
    )
    guest.run(cfn(config, group="script", outputs=["problem"]))
    assert heat.signals[0]["problem"] == "bad\n"
    assert guest.command("rerun", "d-1").returncode == 0
    assert "problem" not in heat.signals[1]


def test_recovered_run_returns_its_outputs(guest, heat, cfn, wait_until):
    config = f"echo v >$heat_outputs_path.r; touch {guest.root}/now; {guest.gate}"
    guest.metadata(cfn(config, group="script", outputs=["r"]))
    process = guest.start()
    wait_until((guest.root / "now").exists)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    assert heat.signals == []
    guest.open_gate()
    assert guest.run().status == 0
    assert heat.signals[0]["r"] == "v\n"


def test_outputs_in_the_state_directory_are_kept(guest, heat, cfn):
    guest.settings["HEAT_SCRIPT_OUTPUTS"] = str(guest.state)
    assert guest.run(cfn("echo hi", group="script")).status == 0
    assert guest.run().status == 0
    assert len(heat.signals) == 1
