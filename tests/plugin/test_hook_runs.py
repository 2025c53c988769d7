"""The fixtures for a hook's own unit tests, as another repository uses them."""

from __future__ import annotations

from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "hook"

SHELL = """#!/bin/sh
if [ "$#" -eq 0 ]; then
    exec "$HEAT_CONFIG_LIB/heat-hook" run "$0" deploy
fi
echo "$deploy_action" >> "$HEAT_MINE_WORKING/actions"
. "$heat_config_file"
"""

TESTS = """
import json
import subprocess

import pytest

HOOK = "hooks/mine.sh"


def test_a_run(run_hook):
    config = 'echo "hello $who"; echo "$who" > $heat_outputs_path.greeted; echo no >&2; exit 3'
    answer = run_hook(HOOK, config, inputs={"who": "me"}, outputs=["greeted"], group="mine")
    assert (answer.status, answer.complete) == (3, False)
    assert (answer.stdout, answer.stderr) == ("hello me\\n", "no\\n")
    assert (answer.outputs, answer.log) == ({"greeted": "me\\n"}, "")


def test_runs_of_a_test_share_their_directories(run_hook):
    for action in ("CREATE", "UPDATE"):
        answer = run_hook(HOOK, 'cat "$HEAT_MINE_WORKING/actions"', action=action)
    assert answer.stdout == "CREATE\\nUPDATE\\n"


def test_what_the_runner_says_of_an_answer(run_hook):
    answer = run_hook(HOOK, "", outputs=["wanted"], check=False)
    assert ["wanted" in each for each in answer.problems] == [True]


def test_that_fails(run_hook):
    run_hook(HOOK, "", outputs=["wanted"])


def test_parts_by_themselves(run_hook, hook_deployment, monkeypatch):
    monkeypatch.setenv("HEAT_MINE_SETTING", "a value")
    monkeypatch.setenv("UNRELATED", "a value")
    environment = run_hook.environment(HOOK)
    assert environment["HEAT_MINE_SETTING"] == "a value"
    assert "UNRELATED" not in environment
    given = hook_deployment("true", group="mine", inputs={"list": [1]}, key="an-id")
    assert {"name": "list", "type": "Json", "value": [1]} in given["inputs"]
    assert (given["id"], given["options"]) == ("an-id", {})
    done = subprocess.run(
        [HOOK], input=json.dumps(given), capture_output=True, text=True, env=environment
    )
    assert json.loads(done.stdout)["deploy_status_code"] == 0
"""


def test_hook_fixtures_work_in_a_repository(project):
    hook = project.mkdir("hooks") / "mine.sh"
    hook.write_text(SHELL)
    hook.chmod(0o755)
    project.makepyfile(TESTS)
    # In a process of its own: apart from the plug-in everything is as in a repository.
    result = project.runpytest_subprocess("-q")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(
        ['the hook "*/hooks/mine.sh" did not answer as the runner expects:', '*"wanted"*']
    )


def test_documented_example_passes(project):
    tests = (EXAMPLE / "tests").glob("test_*_here.py")
    arguments = ["-q", "--rootdir", EXAMPLE, *tests]
    project.runpytest_subprocess(*arguments).assert_outcomes(passed=3)
