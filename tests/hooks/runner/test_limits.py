"""Time limits, process groups and the environment of a hook's start."""

import json
import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest
from programs import alive

from .conftest import PYTHON, limits

RUNNER = Path(__file__).resolve().parents[3] / "hooks" / "55-heat-config"


@pytest.mark.defect("H12", "H15")
def test_hook_that_runs_too_long_is_stopped_with_its_children(guest, heat, cfn):
    pids = guest.root / "pids"
    config = (
        "#!/bin/sh\ntrap '' TERM\necho half way\necho worried >&2\n"
        f"sleep 300 & echo $! $$ >{pids}\nsleep 301\n"
    )
    for limit in limits(pids):
        heat.requests.clear()
        slow = cfn(config, group="script", id=f"slow-{limit}", options={"timeout": limit})
        assert guest.run(slow, cfn(id=f"next-{limit}")).status == 0
    first, second = heat.signals
    assert first["deploy_status_code"] == 124
    assert first["deploy_stdout"] == "half way\n"
    assert first["deploy_stderr"].startswith("worried\n")
    assert f"longer than {limit} seconds" in first["deploy_stderr"]
    assert second["deploy_status_code"] == 0
    for pid in pids.read_text().split():
        assert not alive(int(pid))


def test_default_time_limit_is_in_the_config_file(guest, heat, cfn):
    began = guest.root / "began"
    guest.hook("shell", f"#!/bin/sh\necho started\ntouch {began}\nsleep 60\n")
    for limit in limits(began):
        heat.requests.clear()
        lines = ("[ignored]", "# comment", f"timeout = {limit / 2}", "kill_after=0.2", "nonsense")
        guest.config.write_text("\n".join(lines) + "\n")
        done = guest.run(cfn(id=f"d-{limit}"))
    assert heat.signals[0]["deploy_status_code"] == 124
    assert heat.signals[0]["deploy_stdout"] == "started\n"
    assert "line 5 is not understood" in done.log


@pytest.mark.parametrize("bad", ["soon", -1, [], {}, True, "nan", 1e400], ids=repr)
def test_invalid_time_limit_is_ignored(guest, heat, cfn, bad):
    guest.document.write_text(json.dumps([cfn(options={"timeout": bad})]))
    assert "option timeout" in guest.run().log
    assert heat.signals[0]["deploy_status_code"] == 0


@pytest.mark.defect("H12")
def test_background_child_neither_blocks_nor_dies(guest, heat, cfn):
    pid_file = guest.root / "pid"
    guest.shell_hook(
        "shell", f"sleep 300 &\necho $! >{pid_file}\n" + "echo '{\"deploy_status_code\":0}'\n"
    )
    assert guest.run(cfn()).status == 0
    pid = int(pid_file.read_text())
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_killed_hook_fails_with_its_output_so_far(guest, heat, cfn):
    guest.run(cfn("echo so far; kill -9 $PPID; sleep 300", group="script"))
    (body,) = heat.signals
    assert body["deploy_status_code"] == 137
    assert body["deploy_stdout"] == "so far\n"
    assert "signal 9" in body["deploy_stderr"]


def test_stopped_hook_runs_its_finally_clauses(guest, heat, cfn):
    # It ends by itself, and needs no time limit for that.
    guest.config.write_text("kill_after = 60\n")
    began = guest.root / "began"
    guest.hook(
        "shell",
        f"#!{PYTHON} -IS\nimport os, sys\n"
        "sys.path.insert(0, os.environ['HEAT_CONFIG_LIB'])\nfrom heat_config import hook\n"
        "@hook.main\ndef main(deployment):\n    try:\n"
        f"        open({str(began)!r}, 'w').close()\n"
        "        return hook.run(['sleep', '60'])\n"
        f"    finally:\n        open({str(guest.root / 'cleaned')!r}, 'w').close()\n",
    )
    for limit in limits(began):
        heat.requests.clear()
        assert guest.run(cfn(id=f"d-{limit}", options={"timeout": limit})).status == 0
    assert heat.signals[0]["deploy_status_code"] == 124
    assert (guest.root / "cleaned").exists()


def test_hooks_get_default_signal_dispositions_and_their_own_session(guest, heat, cfn):
    guest.hook(
        "shell",
        '#!/bin/sh\nprintf \'{"deploy_status_code":0,"deploy_stdout":"%s %s"}\' '
        "$(sed -n 's/SigIgn:.//p;s/SigBlk:.//p' /proc/$$/status | tr '\\n' :) "
        "$(test $(cut -d' ' -f6 /proc/$$/stat) = $$ && echo leader)\n",
    )
    guest.metadata(cfn())
    process = subprocess.Popen(
        [PYTHON, "-IS", str(RUNNER)],
        env=guest.environment,
        preexec_fn=_ignore_signals,
    )
    assert process.wait(60) == 0
    assert heat.signals[0]["deploy_stdout"] == "0000000000000000:0000000000000000: leader"


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077], ids=oct)
def test_scripts_have_the_umask_of_the_unit_and_our_own_files_do_not(guest, heat, cfn, umask):
    """heat-agents leave the umask alone too: a unit's is 022 (systemd.exec, UMask=)."""
    made = guest.root / "srv" / "www"
    config = f"umask; mkdir -p {made}; echo hello >{made}/index.html"
    guest.metadata(cfn(config, group="script"))
    process = subprocess.Popen([PYTHON, "-IS", str(RUNNER)], env=guest.environment, umask=umask)
    assert process.wait(60) == 0
    assert heat.signals[0]["deploy_stdout"] == f"{umask:04o}\n"
    for directory in (made.parent, made):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o777 & ~umask
    assert stat.S_IMODE((made / "index.html").stat().st_mode) == 0o666 & ~umask
    for directory in (guest.state, guest.logs, guest.root / "script"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        for path in directory.iterdir():
            wanted = 0o700 if directory.name == "script" else 0o600
            assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_missing_parents_are_made_for_everybody(guest, heat, cfn):
    """heat-agents make them so: os.makedirs(path, 0o700) under the unit's umask."""
    deep = guest.root / "deep"
    guest.logs = deep / "logs" / "log"
    guest.settings["HEAT_SCRIPT_OUTPUTS"] = str(deep / "outputs" / "script")
    assert guest.run(cfn("true", group="script")).status == 0
    for name, mode in (("", 0o755), ("logs", 0o755), ("logs/log", 0o700), ("outputs", 0o755)):
        assert stat.S_IMODE((deep / name).stat().st_mode) == mode, name
    assert stat.S_IMODE((deep / "outputs" / "script").stat().st_mode) == 0o700


def _ignore_signals():
    for number in (signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
