"""Removal of the folders of earlier runs, and the folders that always stay."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from hotplate.report.artifacts import Artifacts, remove_old_runs


def ended(base, second):
    """The folder of a run that has ended, with its artifacts."""
    folder = base / f"20261101T0000{second:02}Z-a.qcow2"
    (folder / "servers/web").mkdir(parents=True)
    (folder / "servers/web/disk.qcow2").write_bytes(b"QFI")
    return folder


def test_newest_runs_stay(tmp_path):
    folders = [ended(tmp_path, second) for second in (3, 1, 2, 4)]
    assert remove_old_runs(tmp_path, 2) == []
    assert sorted(tmp_path.iterdir()) == sorted([folders[0], folders[3]])


def test_all_runs_stay_when_fewer_than_limit(tmp_path):
    folder = ended(tmp_path, 1)
    assert remove_old_runs(tmp_path, 5) == []
    assert folder.is_dir()
    assert remove_old_runs(tmp_path / "none", 5) == []


def test_run_in_progress_stays(tmp_path):
    """Its own process locks it until it ends, in any way."""
    going_on = Artifacts(tmp_path, "a.qcow2")
    renamed = going_on.folder.rename(tmp_path / "20200101T000000Z-a.qcow2")
    old, new = ended(tmp_path, 1), ended(tmp_path, 2)
    assert remove_old_runs(tmp_path, 1) == []
    assert renamed.is_dir()
    assert not old.exists()
    assert new.is_dir()
    del going_on
    assert remove_old_runs(tmp_path, 1) == []
    assert not renamed.exists()


def test_run_that_last_points_to_stays(tmp_path):
    old, new = ended(tmp_path, 1), ended(tmp_path, 2)
    (tmp_path / "last").symlink_to(old.name)
    assert remove_old_runs(tmp_path, 1) == []
    assert old.is_dir()
    assert new.is_dir()


def test_only_folders_of_runs_are_removed(tmp_path):
    """Neither a session of hotplate up, nor other files, nor the target of a link."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    base = tmp_path / "artifacts"
    for name in ("up", "check", "20261101-mine", "x20261101T000000Z-a"):
        (base / name).mkdir(parents=True)
    (base / "20261101T000000Z-file").write_text("")
    (base / "20261101T000000Z-link").symlink_to(elsewhere)
    names = sorted(each.name for each in base.iterdir())
    for second in (1, 2):
        ended(base, second)
    assert remove_old_runs(base, 1) == []
    assert sorted(each.name for each in base.iterdir()) == sorted(
        [*names, "20261101T000002Z-a.qcow2"]
    )
    assert elsewhere.is_dir()


def test_folder_that_cannot_be_removed_is_reported(tmp_path, monkeypatch):
    folder = ended(tmp_path, 1)
    ended(tmp_path, 2)

    def refuse(path):
        raise OSError(1, os.strerror(1), str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    (problem,) = remove_old_runs(tmp_path, 1)
    assert problem == (
        f'the folder of an earlier run "{folder}" cannot be removed: Operation not permitted'
    )


def test_pytest_run_removes_earlier_ones(pytester, tmp_path, monkeypatch):
    """The plug-in's own folder is the newest and is not counted."""
    base = tmp_path / "artifacts"
    for second in range(3):
        ended(base, second)
    pytester.makepyfile(
        """
        from hotplate.plugin import plugin

        def test_it(pytestconfig):
            assert plugin._folder(pytestconfig).is_dir()
        """
    )
    monkeypatch.setenv("HOTPLATE_ARTIFACTS", str(base))
    result = pytester.runpytest_subprocess("--keep-runs", "1")
    result.assert_outcomes(passed=1)
    before = [each for each in base.iterdir() if each.name.startswith("20261101T")]
    assert len(before) == 1


def test_command_run_removes_earlier_ones(tmp_path):
    """Any run does, also one of a file that is no image."""
    base = tmp_path / "artifacts"
    for second in range(3):
        ended(base, second)
    (tmp_path / "none.qcow2").write_bytes(b"no image")
    template = tmp_path / "stack.yaml"
    template.write_text("heat_template_version: 2021-04-16\nresources: {}\n")
    limit = ("--keep-runs", "1")
    result = subprocess.run(
        [sys.executable, "-m", "hotplate", "test", "none.qcow2", "-t", template.name, *limit],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode, result.stdout
    folders = sorted(each.name for each in base.iterdir() if each.name.startswith("202"))
    assert folders[0] == "20261101T000002Z-a.qcow2"
    assert len(folders) == 2, result.stderr
