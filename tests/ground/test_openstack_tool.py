"""tools/openstack: one at a time, nothing half made is used, and a sentence for each bad state.

``tests/booted/test_real_openstack.py`` starts the cloud.
"""

from __future__ import annotations

import importlib.machinery
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hotplate.errors import HostError
from hotplate.locks import exclusive
from hotplate.timing.deadline import Deadline, retry

TOOL = Path(__file__).resolve().parents[2] / "tools" / "openstack"


@pytest.fixture(scope="module")
def tool() -> Any:
    """The names of tools/openstack."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        file = str(TOOL) + ".d/cloud.py"
        loader = importlib.machinery.SourceFileLoader("openstack_tool", file)
        module = ModuleType(loader.name)
        module.__file__ = file
        patch.setitem(sys.modules, loader.name, module)
        loader.exec_module(module)
        yield module


@pytest.fixture
def place(tool: Any, tmp_path: Path) -> Any:
    folder = tmp_path / "openstack" / "zed"
    folder.mkdir(parents=True)
    return tool.Place(folder, "zed")


def called(cache: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TOOL, *words, "--cache", cache],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("verb", ["stop", "remove"])
def test_verb_succeeds_when_nothing_runs_and_leaves_no_directory(tmp_path, verb):
    done = called(tmp_path, verb)
    assert (done.returncode, done.stderr) == (0, "")
    assert "does not run" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_status_tells_by_its_exit_that_nothing_runs(tmp_path, place):
    (place.folder / "system-0123").mkdir()
    done = called(tmp_path, "status")
    assert (done.returncode, done.stderr) == (1, "")
    assert "does not run; made: system-0123" in done.stdout


def test_command_is_refused_when_nothing_runs(tmp_path):
    done = subprocess.run(
        [TOOL, "run", "--cache", tmp_path, "--", "touch", tmp_path / "ran"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 3
    assert done.stderr == (
        "tools/openstack: zed does not run\n  hint: tools/openstack start --release zed\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["start", "remove"])
def test_verb_is_refused_while_another_process_is_at_work(tool, place, monkeypatch, verb):
    monkeypatch.setattr(tool, "check_host", lambda _: None)
    monkeypatch.setattr(tool, "LOCK_SECONDS", 0.2)
    (place.folder / "run").mkdir()
    with (
        exclusive(place.folder),
        pytest.raises(HostError, match=r'another "tools/openstack" is at work in ".*/zed"'),
    ):
        getattr(tool, verb)(place)
    assert (place.folder / "run").exists()


def test_lock_lives_as_long_as_a_process_that_inherits_it(place):
    with place.lock() as held:
        heir = subprocess.Popen(["sleep", "60"], pass_fds=[held])
    try:
        with pytest.raises(HostError), place.lock():
            raise AssertionError("held by nobody")
    finally:
        heir.kill()
        heir.wait()
    with place.lock():
        pass


@pytest.mark.root
def test_killed_start_leaves_no_installation_running(place):
    """A later start deletes the unfinished directory, which nobody may write to then."""
    stub = place.folder / "mmdebstrap"
    stub.write_text("#!/bin/sh\nmkdir -p $(dirname $0)/began\nexec sleep 600\n")
    stub.chmod(0o755)
    program = (
        "import cloud, pathlib\n"
        f"place = cloud.Place(pathlib.Path({str(place.folder)!r}), 'zed')\n"
        "with place.lock() as lock:\n"
        "    cloud.install('bookworm', [], place.layer('system'), lock)\n"
    )
    search = f"{TOOL}.d:{TOOL.parents[1]}"
    start = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PATH": f"{place.folder}:{os.environ['PATH']}", "PYTHONPATH": search},
    )
    try:
        retry(lambda _: (place.folder / "began").exists(), Deadline(60, "mmdebstrap"))
    finally:
        start.kill()
        start.wait()
    with place.lock(seconds=60):
        pass


def test_interrupted_making_and_run_are_dropped_and_complete_layers_kept(place):
    for name in ("system-0123", "state-4567.new", "run"):
        (place.folder / name / "upper").mkdir(parents=True)
    for name in ("clouds.yaml", "clouds.new", "pid"):
        (place.folder / name).touch()
    place.drop_run()
    assert [path.name for path in place.folder.iterdir()] == ["system-0123"]


def test_layer_has_another_name_when_its_contents_change(place):
    names = {
        place.layer("system", *words).name
        for words in (("bookworm", "a"), ("bookworm", "b"), ("trixie", "a"), ("bookworma",))
    }
    assert len(names) == 4
    assert place.layer("system", "bookworm", "a").name in names


def test_keystone_has_processes_and_no_threads():
    """Two threads and eventlet's locks have made a process that answers no more."""
    started: dict[str, tuple[str, ...]] = {}

    class Cloud:
        def daemon(self, name: str, *words: str, listens: int) -> None:
            started[name] = words

        def wait(self, *names: str) -> None:
            assert {*names} <= {*started}

    runpy.run_path(str(TOOL) + ".d/inside.py")["start_keystone"](Cloud())
    words = started["keystone"]
    assert words[words.index("--processes") + 1] == "2"
    assert "--threads" not in words


@pytest.mark.parametrize("text", ["", "none", "0", "own", "99999999"])
def test_stale_pid_is_no_cloud_and_nothing_is_killed(tool, place, text):
    place.pid.write_text(str(os.getpid()) if text == "own" else text)
    place.clouds.touch()
    assert not place.cloud()
    assert not place.is_up()
    tool.stop(place)
    assert list(place.folder.iterdir()) == []


def test_host_without_a_tool_gets_a_sentence(tool, place, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(place.folder))
    with pytest.raises(HostError, match='"mmdebstrap" is not on this host'):
        tool.check_host(place)
