"""heat-agents' own runner and script hook beside ours, on the same deployments.

What a script can see of how it is run is compared: nothing that templates rely on may differ, and
what does is a row of "Differences" in docs/hooks.rst.
"""

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from .conftest import PYTHON

pytestmark = pytest.mark.network

HOOKS = Path(__file__).resolve().parents[3] / "hooks"
WANTED = (
    "heat-agents==13.0.0 --hash=sha256:"
    "346099c6e9f16bd5e68913b825013acdd97b6743a1764ebcfc08d6528cefa9d6"
)
NOTIFY = """#!/bin/sh
cat >"$1.signal"
echo "$1" >>"$ORDER"
"""
# What the two are told by the test; ours names the deployment's log as well.
OWN = ("HEAT_", "COUNT_DIR", "ORDER", "_", "SHLVL", "PWD", "OLDPWD")
LOOK = """#!/bin/bash
echo "umask $(umask)"
echo "arguments $#, named $(basename "$0")"
echo "in $(basename "$PWD"), beside itself: $(test "$PWD/$(basename "$0")" -ef "$0" && echo yes)"
echo "stdin $(cat | wc -c)"
echo "mode $(stat -c %a "$0") of the script, $(stat -c %a .) of the directory"
mkdir made; echo x >made/file
echo "made $(stat -c %a made) $(stat -c %a made/file)"
echo "limits $(ulimit -Sn) $(ulimit -c)"
echo "signals $(sed -n 's/SigIgn:\\t//p;s/SigBlk:\\t//p' /proc/self/status | tr '\\n' ' ')"
printf %s "out" >"$heat_outputs_path.result"
ln -s "$heat_outputs_path.result" "$heat_outputs_path.link"
echo to-stderr >&2
rm -r made
exit "$code"
"""


@pytest.fixture(scope="module")
def theirs(fetch):
    """The sources of heat-agents."""
    archive = fetch(WANTED, "--no-binary")
    folder = archive.parent
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / "heat_agents-13.0.0"


@pytest.fixture(params=["heat-agents", "ours"])
def both(request, guest, theirs, tmp_path):
    """Run deployments with one of the two; the signals by id, and the order of them."""
    notify = tmp_path / "notify"
    notify.write_text(NOTIFY)
    notify.chmod(0o755)
    guest.settings.update(HEAT_CONFIG_NOTIFY=str(notify), ORDER=str(tmp_path / "order"))
    guest.state.mkdir(mode=0o700)
    if request.param == "ours":
        guest.real_hook("script", "script.py")
        program = [PYTHON, "-IS", str(HOOKS / "55-heat-config")]
    else:
        hook = (theirs / "heat-config-script/install.d/hook-script.py").read_text()
        guest.hook("script", hook.replace("/usr/bin/env python3", sys.executable, 1))
        runner = theirs / "heat-config/os-refresh-config/configure.d/55-heat-config"
        program = [sys.executable, str(runner)]

    environment = guest.environment
    if request.param == "heat-agents":
        del environment["LC_ALL"]  # the unit of tripleo-image-elements sets none, ours has C

    def run(*deployments):
        guest.metadata(*deployments)
        done = subprocess.run(
            program, env=environment, capture_output=True, cwd="/", umask=0o022, timeout=60
        )
        assert done.returncode == 0, done.stderr
        order = (tmp_path / "order").read_text().split()
        return {Path(path).stem: json.loads(Path(path + ".signal").read_text()) for path in order}

    return run


def test_a_script_sees_the_same(both, cfn, guest):
    inputs = {"greeting": "hello, wörld", "map": "[1, 2]", "empty": ""}
    environment = "\nenv -0 >$heat_outputs_path.env\nexit 0"
    signals = both(
        cfn(LOOK, group="script", id="a", inputs={"code": "0"}, outputs=["result", "link", "none"]),
        cfn(LOOK, group="script", id="b", inputs={"code": "3"}),
        cfn("#!/bin/sh" + environment, group="script", id="c", inputs=inputs, outputs=["env"]),
    )
    assert list(signals) == ["a", "b", "c"]
    expected = (
        "umask 0022\narguments 0, named {}\nin script, beside itself: yes\nstdin 0\n"
        "mode 700 of the script, 700 of the directory\nmade 755 644\n"
    )
    for key, code in (("a", 0), ("b", 3)):
        assert signals[key]["deploy_stdout"].startswith(expected.format(key))
        assert signals[key]["deploy_status_code"] == code
        assert signals[key]["deploy_stderr"] == "to-stderr\n"
        assert signals[key]["deploy_stdout"].endswith(
            "signals 0000000000000000 0000000000000000 \n"
        )
    assert signals["a"].keys() - {"deploy_stdout", "deploy_stderr", "deploy_status_code"} == {
        "result",
        "link",
    }
    assert signals["a"]["link"] == signals["a"]["result"] == "out"
    seen = dict(item.split("=", 1) for item in signals["c"]["env"].rstrip("\0").split("\0"))
    for name in list(seen):
        if name.startswith(OWN) or name.startswith("deploy_"):
            del seen[name]
    assert seen.pop("heat_outputs_path") == str(guest.root / "script-outputs" / "c")
    # Both hooks are Python, which adds this where the locale is C (PEP 538).
    assert seen == {**inputs, "PATH": guest.environment["PATH"], "LC_CTYPE": "C.UTF-8"}


@pytest.mark.parametrize(
    ("printed", "exit_status"),
    [("text", 0), ("text", 4), ('{"deploy_stdout": "x", "deploy_status_code": 5}', 0)],
)
def test_a_hook_of_ones_own_is_read_the_same(both, cfn, guest, printed, exit_status):
    guest.hook("own", f"#!/bin/sh\ncat >/dev/null\necho '{printed}'\nexit {exit_status}\n")
    (signal,) = both(cfn(group="own", id="a")).values()
    if printed == "text":
        assert signal == {
            "deploy_stdout": "text\n",
            "deploy_stderr": "",
            "deploy_status_code": exit_status,
        }
    else:
        assert signal["deploy_status_code"] == 5


def test_a_hook_has_string_inputs_as_text(both, cfn, guest):
    guest.hook(
        "own",
        f"#!{PYTHON} -IS\nimport json, os, sys\nd = json.load(sys.stdin)\n"
        "for i in d['inputs']: os.environ[i['name']] = i['value']\n"
        "print(json.dumps({'deploy_stdout': os.environ['port'], 'deploy_status_code': 0}))\n",
    )
    (signal,) = both(cfn(group="own", id="a", inputs={"port": 8080})).values()
    assert signal["deploy_stdout"] == "8080"
