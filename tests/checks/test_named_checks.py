"""Checks that the command line, a run file and the settings name, until each case has them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from played_cases import cases_of, requested

from hotplate.cases.cluster.payload import Payload, Payloads
from hotplate.errors import UsageError

RUN_FILE = """\
images: [web.raw, db.raw]
templates: [small.yaml]
checks: [checks, one.sh]
goss: goss.yaml
known_failures: known.yaml
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GOSS_PATH", str(tmp_path / "goss"))
    (tmp_path / "checks").mkdir()
    for name in ("web.raw", "db.raw", "goss"):
        (tmp_path / name).write_text("pass")
    for name in ("one.sh", "two.sh", "checks/three.sh"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "small.yaml").write_text("heat_template_version: 2018-08-31\nresources: {}\n")
    (tmp_path / "goss.yaml").write_text("file: {}\n")
    (tmp_path / "known.yaml").write_text("- {pattern: x, tracker: y, snooze: 2030-01-01}\n")
    (tmp_path / "run.yaml").write_text(RUN_FILE)
    return tmp_path


def test_run_file_gives_each_case_its_checks(folder):
    cases = cases_of("-f", str(folder / "run.yaml"))
    assert len(cases) == 2
    for case in cases:
        assert [each.name for each in case.checks.programs] == ["three.sh", "one.sh"]
        assert case.checks.goss.metadata.description == str(folder / "goss.yaml")
        assert [each.tracker for each in case.checks.known] == ["y"]


def test_command_line_replaces_the_checks_of_the_run_file(folder):
    (case, _) = cases_of("-f", str(folder / "run.yaml"), "--check", "two.sh")
    assert [each.name for each in case.checks.programs] == ["two.sh"]
    assert case.checks.goss is not None


def test_settings_name_the_goss_program_and_the_known_failures(folder, monkeypatch):
    monkeypatch.delenv("GOSS_PATH")
    words = ("web.raw", "-t", "small.yaml", "--goss", "goss.yaml")
    with pytest.raises(UsageError, match="no goss program is named"):
        cases_of(*words)
    (folder / "hotplate.toml").write_text('goss_program = "goss"\nknown_failures = "known.yaml"\n')
    (case,) = cases_of(*words)
    assert case.checks.goss.data[0].content == b"pass"
    assert case.checks.known


def test_case_without_checks_has_none(folder):
    (case,) = cases_of("web.raw", "-t", "small.yaml")
    assert not case.checks


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--check", "no.sh"), 'the check "no.sh" does not exist'),
        (("--goss", "no.yaml"), 'the goss file "no.yaml" does not exist'),
        (
            ("--check", "one.sh", "--known-failures", "no.yaml"),
            'the known failures in "no.yaml" cannot be read',
        ),
    ],
)
def test_missing_file_is_wrong_usage_before_anything_runs(folder, words, sentence):
    with pytest.raises(UsageError) as error:
        cases_of("web.raw", "-t", "small.yaml", *words)
    assert sentence in error.value.message


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--known-failures", "known.yaml"), "--known-failures lists checks, and there are none"),
        (("-f", "few.yaml"), '"known_failures" of "few.yaml" lists checks'),
        (("--goss-program", "goss"), "--goss-program has no goss file to run"),
        (("--goss-program", "goss", "--check", "one.sh"), "--goss-program has no goss file"),
    ],
)
def test_option_of_checks_is_wrong_usage_without_any(folder, words, sentence):
    (folder / "few.yaml").write_text("images: web.raw\nknown_failures: known.yaml\n")
    with pytest.raises(UsageError) as error:
        requested("web.raw", "-t", "small.yaml", *words)
    assert sentence in error.value.message


@pytest.mark.parametrize("words", [("--check", "one.sh"), ("--goss", "goss.yaml")])
def test_known_failures_need_a_check_or_a_goss_file(folder, words):
    (case,) = cases_of("web.raw", "-t", "small.yaml", "--known-failures", "known.yaml", *words)
    assert case.checks.known


def test_settings_may_name_known_failures_without_a_check(folder):
    (folder / "hotplate.toml").write_text('goss_program = "goss"\nknown_failures = "known.yaml"\n')
    (case,) = cases_of("web.raw", "-t", "small.yaml")
    assert not case.checks


def test_checks_travel_to_a_worker_with_their_files(folder):
    words = ("web.raw", "-t", "small.yaml", "--check", "checks", "--goss", "goss.yaml")
    (case,) = cases_of(*words)
    sent = Payloads(requested(*words), "topic").pack(case)
    payload: Payload = pickle.loads(pickle.dumps(sent))
    assert payload.case.checks == case.checks
    assert payload.case.checks.programs[0].program == b"#!/bin/sh\n"
