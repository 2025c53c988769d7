"""Nothing outlives a supervised command: tested with real mounts, loop devices and processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotplate.image import supervise

pytestmark = [pytest.mark.root, pytest.mark.tool("unshare"), pytest.mark.tool("losetup")]

MESS = """
set -e
echo $$ > "$1/pid"
truncate -s 16M "$TMPDIR/disk"
loop=$(losetup --show --find "$TMPDIR/disk")
mkfs.ext4 -q "$loop"
mkdir "$TMPDIR/mnt"
mount "$loop" "$TMPDIR/mnt"
touch partial
setsid sleep 1000 &
touch "$1/ready"
"""


def until(condition, *, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


class Supervised:
    """A supervised shell script; the test holds its lifeline."""

    def __init__(self, directory: Path, script: str, *, tmpfs_mib: int, umask: int = -1) -> None:
        self.umask = umask
        self.base = directory / "tmp"
        self.staging = directory / f".out.hotplate-{os.urandom(4).hex()}"
        self.notes = directory / "notes"
        for path in (self.base, self.staging, self.notes):
            path.mkdir(exist_ok=True)
        self.work = self.base / f"{supervise.PREFIX}{os.urandom(4).hex()}"
        self.config = {
            "argv": ["bash", "-c", script, "bash", str(self.notes)],
            "environment": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            "staging": str(self.staging),
            "work": str(self.work),
            "tmpfs_mib": tmpfs_mib,
            "uid": 0,
            "gid": 0,
        }

    @contextlib.contextmanager
    def running(self) -> Iterator[subprocess.Popen[str]]:
        command = ["unshare", "--mount", "--propagation", "private", "--"]
        with subprocess.Popen(
            [*command, sys.executable, "-I", supervise.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
            umask=self.umask,
            # When the tests were started with & or nohup, these signals are ignored.
            preexec_fn=lambda: [
                signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGHUP)
            ],
        ) as child:
            try:
                child.stdin.write(json.dumps(self.config) + "\n")
                child.stdin.flush()
                yield child
            finally:
                child.stdin.close()
                child.wait(120)

    def ready(self) -> None:
        until((self.notes / "ready").exists)

    def assert_nothing_left(self, *, staging: bool = False) -> None:
        assert supervise.loops_of(self.work.name) == []
        assert self.work.name not in Path("/proc/mounts").read_text()
        assert list(self.base.iterdir()) == []
        assert self.staging.exists() is staging
        # Its pid is of the namespace; in the host's table it is found by its open files.
        assert processes_below(self.work) == []


def processes_below(directory: Path) -> list[str]:
    processes = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if str(directory).encode() in environ.read_bytes():
                processes.append(environ.parent.name)
    return processes


@pytest.mark.parametrize("tmpfs_mib", [0, 64], ids=["disk", "memory"])
class TestBoth:
    def test_successful_command_leaves_only_its_output(self, tmp_path: Path, tmpfs_mib: int):
        run = Supervised(tmp_path, "echo $TMPDIR > result; echo said", tmpfs_mib=tmpfs_mib)
        with run.running() as child:
            assert child.stdout.read() == "said\n"
            assert child.wait(120) == 0
        assert str(run.work) in (run.staging / "result").read_text()
        run.assert_nothing_left(staging=True)

    def test_files_of_the_image_have_not_the_umask_of_the_caller(
        self, tmp_path: Path, tmpfs_mib: int
    ):
        run = Supervised(
            tmp_path, 'umask; stat -c %a "$TMPDIR" "$TMPDIR/.."', tmpfs_mib=tmpfs_mib, umask=0o077
        )
        with run.running() as child:
            assert child.stdout.read().split() == ["0022", "755", "755"]
            assert child.wait(120) == 0

    def test_failed_command_leaves_nothing(self, tmp_path: Path, tmpfs_mib: int):
        run = Supervised(tmp_path, MESS + "exit 7", tmpfs_mib=tmpfs_mib)
        with run.running() as child:
            assert child.wait(120) == 7
        run.assert_nothing_left()

    def test_closed_lifeline_ends_everything(self, tmp_path: Path, tmpfs_mib: int):
        run = Supervised(tmp_path, MESS + "sleep 1000", tmpfs_mib=tmpfs_mib)
        with run.running() as child:
            run.ready()
            # A live build is not swept.
            assert supervise.sweep(run.base) == []
            assert supervise.loops_of(run.work.name) != []
            child.stdin.close()
            assert child.wait(120) == supervise.LOST
        run.assert_nothing_left()

    def test_leftovers_of_a_killed_supervisor_are_swept_by_the_next(
        self, tmp_path: Path, tmpfs_mib: int
    ):
        dead = Supervised(tmp_path, MESS + "sleep 1000", tmpfs_mib=tmpfs_mib)
        with dead.running() as child:
            dead.ready()
            child.kill()
            until(lambda: processes_below(dead.work) == [])
        assert supervise.loops_of(dead.work.name) != []
        after = Supervised(tmp_path, "true", tmpfs_mib=tmpfs_mib)
        with after.running() as child:
            assert child.wait(120) == 0
        dead.assert_nothing_left()


def test_signals_are_left_to_the_caller(tmp_path: Path):
    script = 'touch "$1/ready"; while ! [ -e "$1/go" ]; do sleep 0.05; done; trap - INT; exit 0'
    run = Supervised(tmp_path, script, tmpfs_mib=0)
    with run.running() as child:
        run.ready()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            child.send_signal(number)
        (run.notes / "go").touch()
        assert child.wait(120) == 0


def test_only_staging_directories_are_removed(tmp_path: Path):
    precious = tmp_path / "precious"
    precious.mkdir()
    work = tmp_path / "tmp" / f"{supervise.PREFIX}0"
    work.mkdir(parents=True)
    (work / supervise.STATE).write_text(json.dumps({"staging": str(precious)}))
    assert supervise.sweep(work.parent) == [work]
    assert precious.exists()


def test_link_is_not_followed(tmp_path: Path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / supervise.STATE).write_text("{}")
    base = tmp_path / "tmp"
    base.mkdir()
    (base / f"{supervise.PREFIX}0").symlink_to(precious)
    assert supervise.sweep(base) == []
    assert (precious / supervise.STATE).exists()


def test_command_runs_as_the_requesting_user():
    """The supervisor is root; diskimage-builder runs as the user who started it, and calls
    sudo.
    """
    script = 'id -u > who; touch "$TMPDIR/mine" && ! touch "$TMPDIR/../theirs" 2> /dev/null'
    # Not below pytest's directories, which only root may enter.
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        run = Supervised(directory, script, tmpfs_mib=64)
        os.chown(run.staging, 65534, 65534)
        run.config |= {"uid": 65534, "gid": 65534}
        with run.running() as child:
            assert child.wait(120) == 0, child.stdout.read()
        assert (run.staging / "who").read_text() == "65534\n"
        run.assert_nothing_left(staging=True)
