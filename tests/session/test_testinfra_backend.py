"""``pytest --hosts=hotplate://NAME``: a suite of testinfra's, on a server of a session.

The session's socket is real; its servers are shells of this host. ``tests/booted/test_up.py`` has
a booted one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotplate.errors import UsageError
from hotplate.session.channel import Control, in_memory
from hotplate.session.directory import SessionDirectory

SUITE = """\
def test_file(host):
    assert host.file("/etc/passwd").contains("^root:")
    done = host.run("echo %s; echo problem >&2; exit 3", "na\\u00efve 'x'")
    assert (done.rc, done.stdout, done.stderr) == (3, "na\\u00efve 'x'\\n", "problem\\n")
"""


def answer(request: dict[str, object]) -> tuple[object, list[int]]:
    assert request["ask"] == "shell"
    if request["server"] not in ("web 1", ""):
        raise UsageError(f'there is no server "{request["server"]}"')
    done = subprocess.run(["sh", "-c", str(request["command"])], capture_output=True)
    return done.returncode, [in_memory(done.stdout), in_memory(done.stderr)]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Path]:
    """The artifacts of a session that runs."""
    directory = SessionDirectory(tmp_path / "artifacts" / "up")
    with directory.claim(), Control(directory.path, answer) as control:
        thread = threading.Thread(target=control.run)
        thread.start()
        yield directory.path.parent
        control.end()
        thread.join()


def suite_run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_web.py").write_text(SUITE)
    return subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_suite_runs_on_a_server_of_the_session(session, tmp_path):
    (tmp_path / "suite").mkdir()
    words = ("--hosts=hotplate://web 1?timeout=20",)
    done = suite_run(tmp_path / "suite", *words, HOTPLATE_ARTIFACTS=str(session))
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_unknown_server_and_missing_session_are_named(session, tmp_path):
    (tmp_path / "suite").mkdir()
    words = ("--hosts=hotplate://db",)
    done = suite_run(tmp_path / "suite", *words, HOTPLATE_ARTIFACTS=str(session))
    assert 'there is no server "db"' in done.stdout
    done = suite_run(tmp_path / "suite", *words, HOTPLATE_ARTIFACTS=str(tmp_path / "none"))
    assert f'no session runs in "{tmp_path}/none/up"' in done.stdout
