"""``hotplate hook push``: its line for the guest, run here, and the command beside a session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hotplate.cli import main
from hotplate.errors import ImageError, UsageError
from hotplate.hookkit.push import HEAT_AGENTS, OURS, HookFile, hook_file, push_command, pushed
from hotplate.hookkit.show import answer_lines
from hotplate.session import hook_push
from hotplate.session.channel import Control, in_memory
from hotplate.session.directory import ABOUT, SessionDirectory

HOOK = b"#!/bin/sh\necho hello\n"


@pytest.fixture
def places(tmp_path):
    """The two runners' directories, as in a guest."""
    paths = [tmp_path / "ours", tmp_path / "heat-agents"]
    for each in paths:
        each.mkdir()
    return paths


@pytest.fixture
def push(places, tmp_path):
    """Run the line as the guest's shell would; return the result."""

    def run(hook, data=None, *, agent=0):
        procs = tmp_path / "cgroup.procs"
        procs.write_text(f"{agent}\n1\n")
        line = push_command(hook, list(map(str, places)), [str(tmp_path / "none"), str(procs)])
        done = subprocess.run(
            ["sh", "-c", line],
            input=hook.data if data is None else data,
            stdout=subprocess.PIPE,
            timeout=30,
        )
        return pushed(hook, done.returncode, done.stdout)

    return run


def test_pushed_hook_is_the_one_that_runs(push, places):
    hook = HookFile("mine", HOOK)
    assert str(push(hook)) == f"{places[0]}/mine"
    assert (places[0] / "mine").read_bytes() == HOOK
    assert (places[0] / "mine").stat().st_mode & 0o777 == 0o755
    assert push(hook).how == "same"
    assert str(push(HookFile("mine", HOOK + b"# more\n"))) == (
        f"{places[0]}/mine, in place of another"
    )
    assert sorted(each.name for each in places[0].iterdir()) == ["mine"]


def test_overridden_hook_is_named(push, places):
    (places[1] / "mine").write_text("old")
    done = push(HookFile("mine", HOOK))
    assert done.notes == [f"it runs, and not {places[1]}/mine, which is there too"]


def test_hook_goes_to_the_directory_of_heat_agents(push, places):
    places[0].rmdir()
    assert push(HookFile("mine", HOOK)).path == f"{places[1]}/mine"


def test_setting_of_the_agent_comes_first(push, places, tmp_path):
    """HEAT_CONFIG_HOOKS, as in the runner's environment."""
    first = tmp_path / "first"
    first.mkdir()
    (places[0] / "mine").write_text("old")
    environ = {"A": "HEAT_CONFIG_HOOKS=x", "HEAT_CONFIG_HOOKS": str(first)}
    agent = subprocess.Popen(["/bin/sleep", "60"], env=environ)
    try:
        done = push(HookFile("mine", HOOK), agent=agent.pid)
    finally:
        agent.kill()
        agent.wait()
    assert (done.path, done.over) == (f"{first}/mine", (f"{places[0]}/mine",))


def test_missing_interpreter_is_named(push):
    done = push(HookFile("mine", b"#!/usr/bin/env no-such-program\n"))
    assert done.notes == ['the guest has no "no-such-program", which the hook is to be run by']


def test_lines_with_cr_lf_are_named(push):
    done = push(HookFile("mine", HOOK.replace(b"\n", b"\r\n")))
    assert done.notes == ["it cannot be run: its lines end with CR LF, where LF alone is expected"]


def test_truncated_hook_replaces_nothing(push, places):
    push(HookFile("mine", HOOK))
    with pytest.raises(ImageError, match='"mine" did not arrive whole'):
        push(HookFile("mine", HOOK + b"rest"), HOOK)
    assert (places[0] / "mine").read_bytes() == HOOK
    assert len(list(places[0].iterdir())) == 1


def test_refusal_of_a_guest_is_reported(push, places):
    (places[0] / "mine").mkdir()
    with pytest.raises(ImageError, match="a directory is where"):
        push(HookFile("mine", HOOK))
    (places[0] / "mine").rmdir()
    for each in places:
        each.rmdir()
    with pytest.raises(ImageError, match="no runner of hooks in the guest"):
        push(HookFile("mine", HOOK))
    with pytest.raises(ImageError, match="status 5: odd"):
        pushed(HookFile("mine", HOOK), 5, b"odd\x1b[31m\n")


def test_invalid_hook_file_is_refused(tmp_path):
    path = tmp_path / "my_tool.py"
    with pytest.raises(UsageError, match="does not exist"):
        hook_file(path)
    path.write_text("import os\n")
    with pytest.raises(UsageError, match="neither a program nor a script with #!"):
        hook_file(path)
    path.write_bytes(HOOK)
    assert hook_file(path) == HookFile("my-tool", HOOK)
    with pytest.raises(UsageError, match="can have no hook"):
        hook_file(path, "a/b")


class PlayedSession:
    """Answers as ``hotplate up`` does: runs lines in directories of the test, and completes."""

    def __init__(self, directory: SessionDirectory, places: list[Path]) -> None:
        self.directory = directory
        self.deployed: list[dict[str, object]] = []
        self.outputs: dict[str, object] = {"deploy_stdout": "hello\n", "deploy_status_code": 0}
        self.status = "COMPLETE"
        self._places = places

    def answer(self, request):
        (handed,) = request["descriptors"]
        with os.fdopen(os.dup(handed), "rb") as stream:
            data = stream.read()
        if request["ask"] == "deploy":
            self.deployed.append(json.loads(data))
            about = {"reason": "a reason", "outputs": self.outputs}
            return self.status, [in_memory(json.dumps(about).encode())]
        line = request["command"]
        for real, place in zip((OURS, HEAT_AGENTS), self._places, strict=True):
            line = line.replace(real, str(place))
        done = subprocess.run(["sh", "-c", line], input=data, capture_output=True, timeout=30)
        return done.returncode, [in_memory(done.stdout), in_memory(done.stderr)]

    def beside(self, use):
        """Run a session while a function runs in another thread; return its result."""
        results = []
        with self.directory.claim():
            self.directory.write(ABOUT, "{}\n")
            with Control(self.directory.path, self.answer) as control:

                def work():
                    try:
                        results.append(use())
                    finally:
                        control.end()

                thread = threading.Thread(target=work)
                thread.start()
                control.run()
                thread.join()
        return results[0]


@pytest.fixture
def session(tmp_path, places):
    return PlayedSession(SessionDirectory(tmp_path / "up"), places)


@pytest.fixture
def hook(tmp_path):
    path = tmp_path / "my_tool.sh"
    path.write_bytes(HOOK)
    return path


def typed(session, *words):
    """Return the command line that a user types beside a session."""
    where = ["--directory", str(session.directory.path)]
    return [sys.executable, "-m", "hotplate", "hook", "push", *map(str, words), *where]


def run(session, *words):
    def use():
        return subprocess.run(typed(session, *words), capture_output=True, text=True, timeout=60)

    return session.beside(use)


def test_hook_is_pushed_and_deployed(session, hook, places, tmp_path):
    config = tmp_path / "config"
    config.write_text("a config\n")
    words = ["--config", config, "--input", "a=b", "--option", "c=d", "--output", "made"]
    done = run(session, hook, *words)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"pushed  my-tool: {places[0]}/my-tool  [")
    assert lines[1].startswith("result  COMPLETE, deploy_status_code 0  [")
    assert lines[2:4] == ["deploy_stdout:", "    hello"]
    assert lines[-1] == "output made: declared, and not written"
    assert (places[0] / "my-tool").read_bytes() == HOOK
    assert session.deployed == [
        {
            "group": "my-tool",
            "config": "a config\n",
            "inputs": {"a": "b"},
            "outputs": ["made"],
            "options": {"c": "d"},
            "timeout": 300.0,
        }
    ]


def test_failed_deployment_is_reported(session, hook):
    session.status, session.outputs = "FAILED", {}
    done = run(session, hook, "--config", os.devnull)
    assert done.returncode == 1
    assert "result  FAILED, deploy_status_code None" in done.stdout
    assert "reason  a reason\n" in done.stdout


def test_each_save_is_pushed(session, hook, places):
    def use():
        lines = []
        with subprocess.Popen(
            typed(session, hook, "--watch"), stdout=subprocess.PIPE, text=True
        ) as child:
            try:
                for data in (HOOK, b"no hook\n", b"#!/bin/sh\nexit\n", None):
                    for line in child.stdout:
                        lines.append(line)
                        if line.startswith("waiting for"):
                            break
                    if data:
                        hook.write_bytes(data + b"# saved\n")
                    else:
                        child.terminate()
                return child.wait(30), lines
            finally:
                child.kill()

    status, lines = session.beside(use)
    assert status == 128 + 15
    assert [line.split()[0] for line in lines] == [
        *("pushed", "waiting", "pushed", "waiting", "failed", "hint:", "waiting"),
        *("pushed", "waiting"),
    ]
    assert (places[0] / "my-tool").read_bytes() == b"#!/bin/sh\nexit\n# saved\n"


@pytest.mark.parametrize("way", ["in place", "renamed", "removed"])
def test_save_is_noticed_and_other_changes_are_none(hook, way, monkeypatch):
    """Neither a mode nor the same contents again are a save."""
    changes = iter(
        [
            lambda: hook.chmod(0o700),
            lambda: hook.write_bytes(HOOK),
            lambda: hook.unlink() if way == "removed" else None,
            lambda: save(b"half", way),
            lambda: save(b"whole", way),
            lambda: None,
        ]
    )

    def save(data, way):
        target = hook.with_name(".new") if way == "renamed" else hook
        target.write_bytes(data)
        target.rename(hook)

    monkeypatch.setattr(hook_push.time, "sleep", lambda _: next(changes)())
    assert hook_push._saved(hook, HOOK) == b"whole"
    assert next(changes, "all done") == "all done"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "no session runs in"),
        (["--input", "a=b"], "name its --config"),
        (["--timeout", "0"], "--timeout 0 is no time limit"),
    ],
)
def test_wrong_usage_is_refused(hook, tmp_path, capsys, words, sentence):
    where = ["--directory", str(tmp_path / "nothing")]
    assert main(["hook", "push", str(hook), *where, *words]) == 2
    assert sentence in capsys.readouterr().err


def test_output_of_any_type_is_shown_as_it_reads():
    answer = {"deploy_stdout": "", "deploy_stderr": "", "made": {"name": "wörld"}}
    assert list(answer_lines(answer))[-1].strip() == '{"name": "wörld"}'
