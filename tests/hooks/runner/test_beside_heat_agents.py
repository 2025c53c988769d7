"""heat-agents' own runner and script hook beside ours, on the same deployments.

Compares everything that a script can see of its run: templates may rely on it, so each
difference is a row of "Differences" in docs/hooks.rst.
"""

import json
import subprocess
import sys
from pathlib import Path

import programs
import pytest

from .conftest import PYTHON

pytestmark = pytest.mark.network

HOOKS = Path(__file__).resolve().parents[3] / "hooks"
NOTIFY = """#!/bin/sh
cat >"$1.signal"
echo "$1" >>"$ORDER"
"""
# Variables that the test sets for both; ours names the deployment's log as well.
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


@pytest.fixture(params=["heat-agents", "ours"])
def both(request, guest, heat_agents, tmp_path):
    """Run deployments with one of the two; return the signals by id, and their order."""
    notify = programs.program(tmp_path / "notify", NOTIFY)
    guest.settings.update(HEAT_CONFIG_NOTIFY=str(notify), ORDER=str(tmp_path / "order"))
    guest.state.mkdir(mode=0o700)
    if request.param == "ours":
        program = [PYTHON, "-IS", str(HOOKS / "55-heat-config")]
    else:
        hook = (heat_agents / "heat-config-script/install.d/hook-script.py").read_text()
        guest.hook("script", hook.replace("/usr/bin/env python3", sys.executable, 1))
        runner = heat_agents / "heat-config/os-refresh-config/configure.d/55-heat-config"
        program = [sys.executable, str(runner)]

    environment = guest.environment
    if request.param == "heat-agents":
        del environment["LC_ALL"]  # unset by tripleo-image-elements' unit, C in ours

    def run(*deployments):
        guest.metadata(*deployments)
        done = subprocess.run(
            program, env=environment, capture_output=True, cwd="/", umask=0o022, timeout=60
        )
        assert done.returncode == 0, done.stderr
        order = (tmp_path / "order").read_text().split()
        return {Path(path).stem: json.loads(Path(path + ".signal").read_text()) for path in order}

    return run


def test_script_sees_the_same_environment(both, cfn, guest):
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
def test_third_party_hook_is_read_the_same(both, cfn, guest, printed, exit_status):
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


TYPES = ("String", "Json", "Number", "Boolean", "CommaDelimitedList", None)
SCALARS = (None, True, False, 0, 7, -1.5, 1e16)
VALUES = (
    *SCALARS,
    *("", "text", "True", "ünï ☃", 'a "quoted" one\n', "7"),
    *([], ["a", "b"], [1, "it's", None, True, []], {}, {"a": [1, None], "ü": "x\n"}),
)


def _inputs(kinds=TYPES, values=VALUES):
    """Return inputs of each type with each value, as Heat's metadata has them."""
    return [
        {"name": f"{kind}_{number}", "value": value, **({"type": kind} if kind else {})}
        for kind in kinds
        for number, value in enumerate(values)
    ]


def _as_hooks_get_it(entry):
    """Return an input as invoke_hook() of heat-agents' 55-heat-config makes it."""
    if entry.get("type") != "String" or isinstance(entry["value"], str):
        return entry["value"]
    return str(entry["value"])


def test_inputs_reach_a_hook_the_same(both, cfn, guest):
    program = (
        f"#!{PYTHON} -IS\nimport json, sys\ninputs = json.load(sys.stdin)['inputs']\n"
        "print(json.dumps({'deploy_stdout': json.dumps(inputs), 'deploy_status_code': 0}))\n"
    )
    guest.hook("own", program)
    deployment = cfn(group="own", id="a")
    deployment["inputs"] += _inputs()
    (signal,) = both(deployment).values()
    seen = {entry["name"]: entry["value"] for entry in json.loads(signal["deploy_stdout"])}
    for entry in _inputs():
        value = seen[entry["name"]]
        assert (type(value), value) == (type(_as_hooks_get_it(entry)), _as_hooks_get_it(entry))


def test_inputs_reach_a_script_the_same(both, cfn, request):
    """Non-text scalars of a type other than String end heat-agents' hook with a traceback.

    Here they are JSON, a row of "Differences" in docs/hooks.rst.
    """
    is_ours = request.node.callspec.params["both"] == "ours"
    scalars = _inputs(kinds=TYPES[1:], values=SCALARS)
    others = [entry for entry in _inputs() if not any(entry == scalar for scalar in scalars)]
    alone = [{**entry, "name": "x", "type": entry.get("type", "")} for entry in scalars[::3]]
    script = "#!/bin/sh\nenv -0 >$heat_outputs_path.env\n"
    deployment = cfn(script, group="script", id="all", outputs=["env"])
    deployment["inputs"] += [*others, *(scalars if is_ours else ())]
    crashing = [
        cfn(script, group="script", id=f"alone-{number}", outputs=["env"])
        for number in range(len(alone))
    ]
    for each, entry in zip(crashing, alone, strict=True):
        each["inputs"].append(entry)
    signals = both(deployment, *crashing)
    seen = dict(item.split("=", 1) for item in signals.pop("all")["env"].rstrip("\0").split("\0"))
    for entry in others:
        value = _as_hooks_get_it(entry)
        expected = value if isinstance(value, str) else json.dumps(value)
        assert seen[entry["name"]] == expected, entry
    for entry in scalars if is_ours else ():
        assert seen[entry["name"]] == ("" if entry["value"] is None else json.dumps(entry["value"]))
    assert {signal["deploy_status_code"] for signal in signals.values()} == {0 if is_ours else 1}


def test_script_that_compares_with_true_takes_the_same_branch(both, cfn):
    script = '#!/bin/sh\nif [ "$flag" = True ]; then echo on; else echo off; fi\n'
    (signal,) = both(cfn(script, group="script", id="a", inputs={"flag": True})).values()
    assert signal["deploy_stdout"] == "on\n"
