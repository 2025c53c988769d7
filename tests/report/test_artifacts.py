from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hotplate.errors import HostError
from hotplate.report import artifacts as artifacts_module
from hotplate.report.artifacts import Artifacts, earlier_run, redacted
from hotplate.verdict.verdict import Subject


def verdict_of(story, artifacts):
    return story.result(artifacts=str(artifacts.folder))


def test_artifacts_are_complete_and_private(passed, tmp_path):
    artifacts = Artifacts(tmp_path / "deep" / "base", "a.qcow2")
    template = tmp_path / "stack.yaml"
    template.write_text("heat_template_version: 2021-04-16\n")
    artifacts.copy(template)
    artifacts.write_json("parameters.json", {"password": "typed by the user"})
    artifacts.finish(verdict_of(passed, artifacts), passed.events, report="<html></html>")
    assert artifacts.problem is None
    assert {path.name for path in artifacts.folder.iterdir()} == {
        "verdict.json",
        "timeline.json",
        "requests.jsonl",
        "report.html",
        "stack.yaml",
        "parameters.json",
    }
    assert stat.S_IMODE(artifacts.folder.stat().st_mode) == 0o700
    for path in artifacts.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert json.loads((tmp_path / "deep/base/last/verdict.json").read_text())["passed"] is True
    text = (artifacts.folder / "timeline.json").read_text()
    assert len(json.loads(text)) == len(text.splitlines()[1:-1]) == len(passed.events)
    requests = (artifacts.folder / "requests.jsonl").read_text().splitlines()
    assert {json.loads(line)["source"] for line in requests} == {"metadata", "cfn"}


def no_json(word):
    raise ValueError(f"{word} is no JSON")


def test_nan_and_infinity_are_written_as_text(passed, tmp_path):
    """RFC 8259, 6: readers such as jq refuse the words that Python writes for them."""
    artifacts = Artifacts(tmp_path, "x")
    outputs = {"load": float("nan"), "limits": [{"most": float("inf")}, 1.5]}
    passed.console(f"{float('-inf')}")
    passed.emit("guest", "probe", name="x", seconds=float("nan"))
    artifacts.finish(passed.result(outputs=outputs), passed.events)
    for name in ("verdict.json", "timeline.json"):
        content = (artifacts.folder / name).read_text()
        document = json.loads(content, parse_constant=no_json)
        if name == "verdict.json":
            assert document["outputs"] == {"load": "nan", "limits": [{"most": "inf"}, 1.5]}


def test_last_is_swapped_and_never_missing(tmp_path):
    base = tmp_path / "base"

    def run(number: int) -> Path:
        artifacts = Artifacts(base, f"image {number}/../x")
        artifacts.write_json("verdict.json", {"run": number})
        artifacts.point()
        assert (base / "last" / "verdict.json").exists()
        return artifacts.folder

    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(run, range(40)))
    assert len(set(folders)) == 40
    assert {folder.parent for folder in folders} == {base}
    assert not [path for path in base.iterdir() if path.name.startswith(".")]


def test_last_stays_at_newer_run_when_older_one_ends(passed, tmp_path, monkeypatch):
    gmtime = time.gmtime

    def begun_at(moment):
        monkeypatch.setattr(artifacts_module.time, "gmtime", lambda: gmtime(moment))
        begun = Artifacts(tmp_path, "web.qcow2")
        begun.begin(Subject("web.qcow2"))
        return begun

    older, newer = begun_at(1_000_000_000), begun_at(1_000_000_060)
    older.finish(verdict_of(passed, older), passed.events)
    assert (tmp_path / "last").resolve() == newer.folder
    newer.finish(verdict_of(passed, newer), passed.events)
    # A clock that was set back makes no run an older one.
    set_back = begun_at(999_999_000)
    set_back.finish(verdict_of(passed, set_back), passed.events)
    assert (tmp_path / "last").resolve() == set_back.folder


def test_folders_of_runs_in_same_second_differ(tmp_path):
    assert len({Artifacts(tmp_path, "same").folder for _ in range(5)}) == 5


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("/v1/?AWSAccessKeyId=KEY&Signature=SIG%3D&Action=x", ["KEY", "SIG"]),
        ("http://s/v1/A/c/o?temp_url_sig=abcdef&temp_url_expires=1", ["abcdef"]),
        ("curl -i -X POST -H 'X-Auth-Token: gAAAb-c_d==' -H 'Accept: x' http://h/", ["gAAA", "_d"]),
        ('{"X-Subject-Token": "0123abcd"}', ["0123abcd"]),
        (f"token = gAAAAAB{'rC1h_-' * 30}==", ["gAAA", "rC1h"]),
    ],
)
def test_secret_is_redacted(text, gone):
    assert all(word not in redacted(text) for word in gone)


@pytest.mark.parametrize(
    "text", ["curl -H 'X-Auth-Token: $token' http://h/", "gAAAAnonsense", "the token: none"]
)
def test_text_without_secret_stays(text):
    assert redacted(text) == text


def test_written_events_are_redacted(story, tmp_path):
    story.power()
    story.request("swift", "PUT", "/v1/A/c/o?temp_url_sig=TOPSECRET", 201)
    artifacts = Artifacts(tmp_path, "x")
    artifacts.write_events(story.events)
    for path in artifacts.folder.iterdir():
        assert "TOPSECRET" not in path.read_text()


def test_base_that_is_a_file_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot be written") as caught:
        Artifacts(tmp_path / "file" / "base", "x")
    assert "\n" not in caught.value.message


def test_missing_template_is_reported_without_stopping(passed, tmp_path):
    artifacts = Artifacts(tmp_path, "x")
    assert artifacts.copy(tmp_path / "none.yaml") is None
    assert 'none.yaml" cannot be read' in str(artifacts.problem)
    artifacts.finish(verdict_of(passed, artifacts), passed.events)
    assert (tmp_path / "last" / "verdict.json").exists()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.root
def test_verdict_is_written_on_full_disk(passed, small_disk):
    artifacts = Artifacts(small_disk, "x")
    verdict = verdict_of(passed, artifacts)
    artifacts.finish(verdict, passed.events, report="x" * 200_000)
    assert "the disk is full" in artifacts.problem.message
    assert "df -h" in artifacts.problem.hint
    assert json.loads((artifacts.folder / "verdict.json").read_text())["passed"] is True
    assert not list(artifacts.folder.glob(".*"))


@pytest.mark.root
def test_read_only_folder_is_one_sentence(passed, small_disk):
    artifacts = Artifacts(small_disk, "x")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    artifacts.finish(verdict_of(passed, artifacts), passed.events)
    assert "the file system is read-only" in artifacts.problem.message
    with pytest.raises(HostError, match="read-only"):
        Artifacts(small_disk, "y")


def test_folder_without_permission_is_one_sentence(tmp_path):
    tmp_path.chmod(0o500)
    was = os.geteuid()
    if was == 0:
        os.seteuid(65534)  # root writes everywhere
    try:
        with pytest.raises(HostError, match="permission is denied"):
            Artifacts(tmp_path / "base", "x")
    finally:
        os.seteuid(was)


def test_earlier_run_is_the_newest_of_that_case_that_said_something(passed, tmp_path):
    verdict = passed.result(image="a.qcow2").to_json()
    times = {
        "20261101T100000Z-a.qcow2": {},
        "20261101T110000Z-a.qcow2.2": {"outcome": "failed"},
        "20261101T120000Z-a.qcow2": {"outcome": "machine lost"},
        "20261101T130000Z-a.qcow2": {"case": "a.qcow2 ec2"},
        "20261101T140000Z-b.qcow2": {},
        "20261101T160000Z-a.qcow2": {},
    }
    for name, change in times.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "verdict.json").write_text(json.dumps(verdict | change))
    for name, text in (("14", "["), ("15", "[]"), ("16", "[" * 100_000)):
        damaged = tmp_path / f"20261101T{name}3000Z-a.qcow2"
        damaged.mkdir()
        (damaged / "verdict.json").write_text(text)
    (tmp_path / "20261101T143100Z-a.qcow2").mkdir()
    found = earlier_run(tmp_path / "20261101T150000Z-a.qcow2", "a.qcow2")
    assert found.folder.name == "20261101T110000Z-a.qcow2.2"
    assert found.verdict["outcome"] == "failed"
    assert earlier_run(tmp_path / "20261101T100000Z-a.qcow2", "a.qcow2") is None
    assert earlier_run(tmp_path / "none" / "20261101T100000Z-a.qcow2", "a.qcow2") is None
