"""The control groups of a container: on hosts that have none to give, and at its end."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from hotplate.container import cgroups
from hotplate.container.cgroups import ControlGroups


def test_host_without_control_groups_bounds_nothing_and_says_so(monkeypatch):
    monkeypatch.setattr(cgroups, "_own", dict)
    groups = ControlGroups.make(memory_mib=64, processes=64)
    assert groups.unbounded == "the host has no control groups for memory"
    assert groups.entrances == []


def test_group_that_gives_no_controllers_bounds_nothing_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cgroups, "_own", lambda: {"": tmp_path})
    # A folder cannot be written to, as little as the file of a group with processes.
    (tmp_path / "cgroup.subtree_control").mkdir()
    groups = ControlGroups.make(memory_mib=64, processes=64)
    assert groups.unbounded == "the host's control groups refuse it: Is a directory"


ENTER = 'for each; do echo $$ >"$each" || exit 1; done; echo in; exec sleep 60'


@pytest.mark.root
def test_process_that_enters_late_is_killed_or_kept_out() -> None:
    """Such a child survived unshare(1), which a kill met between its fork and its prctl()."""
    groups = ControlGroups.make(memory_mib=64, processes=64)
    command = ["sh", "-c", ENTER, "sh", *groups.entrances]
    groups.end()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as late:
        assert late.stdout is not None
        assert late.stdout.readline() == b"in\n"
        groups.remove()
        assert late.wait(60) == -signal.SIGKILL
    assert not [each for each in groups.entrances if Path(each).exists()]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode


@pytest.mark.root
def test_process_left_by_a_killed_helper_is_killed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    with monkeypatch.context() as patch:
        patch.setattr(cgroups.os, "getpid", lambda: ended.pid)
        killed = ControlGroups.make(memory_mib=64, processes=64)
    command = ["sh", "-c", ENTER, "sh", *killed.entrances]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as left:
        assert left.stdout is not None
        assert left.stdout.readline() == b"in\n"
        ControlGroups.make(memory_mib=64, processes=64).remove()
        assert left.wait(60) == -signal.SIGKILL
    assert not [each for each in killed.entrances if Path(each).exists()]
