"""The keeper: its children die with the harness, however that is killed."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hotplate.children import reaper
from hotplate.children.keeper import FIRST_CHILD_FD, Child, Keeper
from hotplate.errors import HostError, MachineLostError
from hotplate.timing.deadline import Deadline, DeadlineExceeded

HARNESS = """
import os, sys, time
from pathlib import Path
from hotplate.children.keeper import Keeper
keeper = Keeper().__enter__()
child = keeper.spawn(["sleep", "1000"], directory=Path("/"), stderr=Path(sys.argv[1]))
if sys.argv[2] == "fork" and os.fork() == 0:
    time.sleep(1000)
print(os.getpid(), keeper.pid, child.pid, flush=True)
time.sleep(1000)
"""


def gone(pidfd: int, seconds: float = 60.0) -> bool:
    """Return True when a process ends in time."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


@pytest.mark.parametrize(
    ("how", "victim"),
    [("plain", "harness"), ("fork", "harness"), ("plain", "keeper")],
)
def test_children_die_when_harness_or_keeper_is_killed(
    tmp_path: Path, how: str, victim: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HARNESS, tmp_path / "log", how],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as harness:
        try:
            assert harness.stdout is not None
            pid, keeper, child = (int(word) for word in harness.stdout.readline().split())
            watched = {"keeper": os.pidfd_open(keeper), "child": os.pidfd_open(child)}
            assert not gone(watched["child"], 0.1)
            os.kill({"harness": pid, "keeper": keeper}[victim], signal.SIGKILL)
            assert gone(watched["child"])
            assert gone(watched["keeper"])
        finally:
            os.killpg(harness.pid, signal.SIGKILL)


def spawn(keeper: Keeper, tmp_path: Path, script: str, **options: object) -> Child:
    return keeper.spawn(
        ["sh", "-c", script],
        directory=tmp_path,
        stderr=tmp_path / "log",
        **options,  # type: ignore[arg-type]
    )


def test_child_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    with Keeper() as keeper:
        children: list[Child] = []
        thread = threading.Thread(
            target=lambda: children.append(spawn(keeper, tmp_path, "sleep 1000"))
        )
        thread.start()
        thread.join()
        with pytest.raises(DeadlineExceeded, match="the child"):
            children[0].wait(Deadline(0.3, "the child"))
        assert children[0].kill() == -signal.SIGKILL


def test_child_reports_its_exit_status_and_last_words(tmp_path: Path) -> None:
    statuses: list[int] = []
    with Keeper() as keeper:
        child = spawn(keeper, tmp_path, "echo no disk >&2; exit 7", on_exit=statuses.append)
        assert child.wait(Deadline(60, "the child")) == 7
        assert child.complaint() == "no disk"
        child.send_signal(signal.SIGKILL)  # must hit no other process
        # A restart of the machine spawns one child after the other.
        assert spawn(keeper, tmp_path, "exit 0").wait(Deadline(60, "the child")) == 0
    assert statuses == [7]


def test_children_end_separately_and_all_with_the_keeper(tmp_path: Path) -> None:
    with Keeper() as keeper:
        first, second, third = (
            spawn(keeper, tmp_path, script) for script in ("sleep 1000", "exit 3", "sleep 1000")
        )
        # An interrupt at the terminal does not reach them.
        assert os.getpgid(first.pid) != os.getpgrp()
        assert second.wait(Deadline(60, "the second child")) == 3
        assert first.kill() == -signal.SIGKILL
        assert third.status is None
    assert third.wait(Deadline(60, "the third child")) == -signal.SIGKILL
    with pytest.raises(MachineLostError):
        spawn(keeper, tmp_path, "true")


def test_keeper_runs_a_module_of_the_package_as_helper(tmp_path: Path) -> None:
    with Keeper("hotplate.children.reaper") as keeper:
        assert spawn(keeper, tmp_path, "exit 4").wait(Deadline(60, "the child")) == 4


def test_end_of_a_helper_is_noticed_without_sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep(_seconds: float) -> None:
        raise AssertionError("it slept")

    with Keeper():
        monkeypatch.setattr(time, "sleep", sleep)


def test_helper_that_is_left_ends_with_its_children(tmp_path: Path) -> None:
    with Keeper() as keeper:
        helper, child = keeper.pid, spawn(keeper, tmp_path, "sleep 1000")
        keeper.leave()
        assert child.wait(Deadline(60, "the child")) == -signal.SIGKILL
        for thread in threading.enumerate():
            if thread.name == "helper-end":
                # The end of a process waits for such threads only.
                assert not thread.daemon
                thread.join(60)
        assert not Path(f"/proc/{helper}").exists()


def test_child_gets_a_clean_environment_and_only_its_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HARNESS", "x")
    read_end, write_end = os.pipe()
    inherited, inherited_writer = os.pipe()
    os.set_inheritable(inherited, True)
    with Keeper() as keeper, os.fdopen(read_end) as stream:
        child = spawn(
            keeper,
            tmp_path,
            f"exec bash -c 'env; ls /proc/self/fd; echo through the pipe >&{FIRST_CHILD_FD}'",
            fds=[write_end],
        )
        os.close(write_end)
        assert child.wait(Deadline(60, "the child")) == 0
        assert stream.read() == "through the pipe\n"
    os.close(inherited)
    os.close(inherited_writer)
    words = (tmp_path / "log").read_text().split()
    assert not any(word.startswith("SECRET") for word in words)
    assert f"HOME={tmp_path}" in words
    # 3 is the descriptor with which ls reads the directory.
    numbers = {int(word) for word in words if word.isdigit()}
    assert numbers == {0, 1, 2, 3, FIRST_CHILD_FD}


def test_missing_program_raises_an_error_that_names_it(tmp_path: Path) -> None:
    with Keeper() as keeper, pytest.raises(HostError, match=r'"/nowhere/qemu" cannot be started'):
        keeper.spawn(["/nowhere/qemu"], directory=tmp_path, stderr=tmp_path / "log")


def test_helper_that_starts_after_its_harness_has_gone_is_silent() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        done = subprocess.run(
            [sys.executable, "-I", "-S", reaper.__file__, str(theirs.fileno()), str(gone.pid)],
            pass_fds=[theirs.fileno()],
            capture_output=True,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_helper_whose_end_was_collected_can_be_closed() -> None:
    keeper = Keeper().__enter__()
    assert keeper._process is not None
    keeper._process.kill()
    keeper._process.wait(60)
    keeper.close()
