"""heat-hook, which reads the deployment and answers for hooks in shell, under the real runner."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

HELPER = Path(__file__).resolve().parents[2] / "hooks" / "heat-hook"

HOOK = """#!/bin/sh
if [ "$#" -eq 0 ]; then
    exec "$HEAT_CONFIG_LIB/heat-hook" run "$0" deploy
fi
get() { "$HEAT_CONFIG_LIB/heat-hook" get "$@"; }
"""

INPUTS = {
    "text": "x 'y' \"z\"\nü☃",
    "with-dash": "value",
    "list": ["a b", 1, None],
    "map": {"key": [1], "other": "text"},
    "true": True,
    "null": None,
}


@pytest.fixture
def deploy(run_hook, tmp_path):
    """Run a hook whose own part is *text*."""

    def run(text, config="", **deployment):
        hook = tmp_path / "mine.sh"
        hook.write_text(HOOK + text)
        hook.chmod(0o755)
        return run_hook(hook, config, inputs=INPUTS, **deployment)

    return run


#: The words after "get", and the expected output.
PRINTED = {
    "input text": INPUTS["text"],
    "input with-dash": "value",
    "input list": '["a b", 1, null]',
    "--lines input list": "a b\n1\n",
    "--lines input map": "key=[1]\nother=text",
    "--lines input text": INPUTS["text"],
    "input true": "true",
    "input null": "None",  # its type is String, and heat-agents makes text of it
    "option kind": "b",
    "config": "echo $HOME",
    "action": "UPDATE",
    "id": "an-id",
    "group": "mine",
}


def test_get_prints_each_value(deploy):
    text = "".join(f"get {words}; echo '--- {words}'\n" for words in PRINTED)
    answer = deploy(text, "echo $HOME", options={"kind": "b"}, action="UPDATE", key="an-id")
    assert (answer.status, answer.stderr) == (0, "")
    assert answer.stdout == "".join(
        f"{printed}\n--- {words}\n" for words, printed in PRINTED.items()
    )


def test_program_gets_inputs_config_and_outputs(deploy):
    text = (
        'printf "%s" "$text" > "$heat_outputs_path.copy"; cat "$heat_config_file"\n'
        'ls -l "$heat_config_file" | cut -c1-10; cat; exit 7\n'
    )
    answer = deploy(text, {"a": 1}, outputs=["copy"])
    assert (answer.status, answer.stdout) == (7, '{"a": 1}-rw-------\n')
    assert answer.outputs == {"copy": INPUTS["text"]}


def test_missing_input_is_reported_by_the_status(deploy):
    answer = deploy("get input absent; echo $?; get option absent; echo $?\n")
    assert (answer.stdout, answer.stderr) == ("1\n1\n", "")


def call(*words, given="", **environ):
    """Run the program directly; return its exit status, stdout and stderr."""
    environ = {"PATH": os.environ["PATH"], "HEAT_CONFIG_LIB": str(HELPER.parent), **environ}
    done = subprocess.run(
        [HELPER, *words], input=given, env=environ, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("words", ["", "frobnicate", "get", "get input", "get config x", "run"])
def test_wrong_usage_is_refused(words):
    status, out, err = call(*words.split())
    assert (status, out) == (2, "")
    assert err.startswith("heat-hook: wrong usage")


def test_missing_deployment_is_explained():
    status, _, err = call("get", "config")
    assert (status, "there is no deployment here" in err) == (2, True)
    assert "heat-hook get" in call("--help")[1]


@pytest.mark.parametrize("given", ["", "[]", '{"id": "../x"}'])
def test_invalid_deployment_is_answered(given):
    status, out, _ = call("run", "true", given=given)
    assert (status, json.loads(out)["deploy_status_code"]) == (0, 1)


def test_group_with_a_path_is_refused(hook_deployment):
    given = json.dumps({**hook_deployment(), "group": "../mine"})
    answer = json.loads(call("run", "true", given=given)[1])
    assert "not a name of letters" in answer["deploy_stderr"]


def test_deployment_leaves_no_files(deploy, run_hook, tmp_path):
    deploy("true\n", key="an-id")
    work = Path(run_hook.environment(tmp_path / "mine.sh")["HEAT_MINE_WORKING"])
    assert [path.name for path in work.iterdir()] == ["an-id"]
