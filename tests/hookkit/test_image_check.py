"""The guest program that checks a hook in an image, run on this host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hotplate.cli import main
from hotplate.errors import HotplateError, Outcome
from hotplate.hookkit import image_check
from hotplate.hookkit.contract import LINES, LineState
from hotplate.hookkit.contract_configs import ContractFile
from hotplate.hookkit.trials import CheckTask

HOOK = """#!/bin/sh
cat >/dev/null
echo '{"deploy_stdout": "", "deploy_stderr": "", "deploy_status_code": 0}'
"""
ANSWER = {
    "hook": "/a",
    "lines": [
        {"name": line.name, "state": "passed", "faults": [], "reason": "", "excepted": {}}
        for line in LINES
    ],
}


@pytest.fixture
def check(tmp_path):
    """Run the steps of a guest in a directory of the test; return the results."""

    def run(text, *lines, tool="", name="", path="/usr/bin:/bin"):
        hook = tmp_path / "a-hook"
        hook.write_text(text)
        hook.chmod(0o755)
        place = str(tmp_path / "place")
        task = CheckTask(
            hook,
            "a-hook",
            ContractFile({"ok": "x", "fails": "y"}, tool=tool),
            {},
            timeout=60,
            roots=[tmp_path / "nothing"],
            lines=lines,
        )
        Path(f"{place}.tar.gz").write_bytes(image_check.bundle())
        Path(f"{place}.json").write_bytes(image_check.request(task, name or str(hook)))
        done = subprocess.run(
            ["/bin/sh", "-c", image_check.COMMAND.format(place=place)],
            env={"PATH": path},
            capture_output=True,
            timeout=120,
        )
        return image_check.read_results(done.returncode, done.stdout, done.stderr)

    return run


def refused(run) -> HotplateError:
    with pytest.raises(HotplateError) as caught:
        run()
    return caught.value


def test_program_needs_only_python(check, tmp_path):
    """It runs with the distribution's Python, which lacks our other packages."""
    path, results = check(HOOK, "again")
    assert path == str(tmp_path / "a-hook")
    states = {each.line.name: each.state for each in results}
    assert (states["answer"], states["again"]) == (LineState.PASSED, LineState.PASSED)
    assert states["inputs"] is LineState.NOT_TRIED


def test_bad_hook_fails_its_line_in_a_guest(check):
    _, results = check(HOOK, "failure")
    (line,) = [each for each in results if each.state is LineState.FAILED]
    assert line.line.name == "failure"
    assert "so Heat takes it for a success" in line.faults[0].reason
    assert line.faults[0].mend


def test_missing_hook_of_a_group_is_a_usage_error(check):
    error = refused(lambda: check(HOOK, name="no-such-group"))
    assert 'the image has no hook for the group "no-such-group"' in error.message
    assert error.outcome is Outcome.USAGE


def test_missing_tool_is_a_fault_of_the_image(check):
    text = HOOK.replace('"deploy_status_code": 0', '"deploy_status_code": 127')
    error = refused(lambda: check(text, tool="no-such-tool"))
    assert 'the tool "no-such-tool" of the group a-hook is not in the image' in error.message
    assert error.outcome is Outcome.FAILED


def test_image_without_python_fails(check, tmp_path):
    error = refused(lambda: check(HOOK, path=str(tmp_path)))
    assert "the image has no Python 3.11 or later" in error.message
    assert error.outcome is Outcome.FAILED


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {},
        {"hook": "/a", "lines": []},
        {"hook": "/a", "lines": ANSWER["lines"][::-1]},
        {"hook": "/a", "lines": [*ANSWER["lines"][:-1], {"name": LINES[-1].name, "state": "odd"}]},
        {
            "hook": "/a",
            "lines": [{**ANSWER["lines"][0], "excepted": {"all": "x"}}, *ANSWER["lines"][1:]],
        },
        {
            "hook": "/a",
            "lines": [{**ANSWER["lines"][0], "state": "failed"}, *ANSWER["lines"][1:]],
        },
    ],
)
def test_malformed_answer_is_no_result(answer):
    output = json.dumps(answer).encode()
    error = refused(lambda: image_check.read_results(0, output, b"a\nthe end\n"))
    assert "gave no results, status 0: the end" in error.message
    assert error.outcome is Outcome.FAILED


def test_complete_answer_is_read():
    path, results = image_check.read_results(0, json.dumps(ANSWER).encode(), b"")
    assert path == "/a"
    assert {each.state for each in results} == {LineState.PASSED}


def test_guest_cannot_blame_the_host():
    output = b'{"outcome": "host error", "message": "no space"}'
    assert refused(lambda: image_check.read_results(0, output, b"")).outcome is Outcome.FAILED


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["script", "--image", "no-such.qcow2"], "no-such.qcow2"),
        (["mine", "--image", "no-such.qcow2"], 'try the hook of the group "mine" with'),
        (["mine", "--contract", "no-such.yaml"], 'the contract file "no-such.yaml" cannot be read'),
    ],
)
def test_wrong_usage_is_refused(capsys, monkeypatch, tmp_path, words, sentence):
    monkeypatch.chdir(tmp_path)
    assert main(["hook", "check", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_oldest_python_is_that_of_the_package():
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'requires-python = ">={".".join(map(str, image_check.OLDEST))}"' in text
    assert sys.version_info >= image_check.OLDEST
