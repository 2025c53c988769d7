"""The control groups of a container, on hosts that have none to give."""

from __future__ import annotations

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
