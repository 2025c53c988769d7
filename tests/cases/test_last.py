"""Cases that are skipped because they passed in the last command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from played_cases import Played

from hotplate.cases.last import NAME, LastCases
from hotplate.cases.table import Case, TemplateChoice
from hotplate.errors import Outcome
from hotplate.verdict.verdict import Verdict


def case(name: str, template: str = "web.yaml") -> Case:
    return Case(name, Path("/images") / name, TemplateChoice(Path(template)))


def remember(last: LastCases, it: Case, outcome: Outcome) -> None:
    last.remember(
        it, Verdict(subject=it.subject, outcome=outcome, status="", reasons=(), stages=())
    )
    last.write()


def test_failed_returns_cases_that_failed_or_did_not_run(tmp_path):
    good, bad, other = map(case, ("good", "bad", "other"))
    last = LastCases(tmp_path)
    assert not last.there
    remember(last, good, Outcome.PASSED)
    remember(last, bad, Outcome.LOST)
    again = LastCases(tmp_path)
    assert again.there
    changed = case("good", "another.yaml")
    assert again.failed([good, bad, other, changed]) == [bad, other, changed]
    remember(again, bad, Outcome.PASSED)
    # A case that passed before is not run again by the next command.
    assert LastCases(tmp_path).failed([good, bad, other]) == [other]


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", '{"format": 2, "cases": []}', '{"format": 1, "cases": [1, {}]}'),
        '{"format": 1, "cases": [{"case": [], "outcome": "passed"}]}',
    ],
)
def test_damaged_file_counts_as_none(tmp_path, text):
    (tmp_path / NAME).write_text(text)
    assert LastCases(tmp_path).failed([case("good")]) == [case("good")]


def test_only_failed_runs_cases_until_all_pass(tmp_path):
    played = Played(tmp_path)
    images = played.images(good="pass", bad="fail", worse="fail")
    words = (*images, "-j", "1", "--json", "v.json")
    assert played.run(*words, "--only-failed").stdout.startswith("3 of 3 cases run; no earlier run")
    played.images(bad="pass")
    second = played.run(*words, "--only-failed")
    assert second.returncode == 1
    assert second.stdout.startswith("2 of 3 cases run; the others passed in the last run\n")
    assert [*played.verdicts()] == ["bad.raw", "worse.raw"]
    # The report of its second run compares the two.
    before, now = sorted((tmp_path / "artifacts").glob("*-bad.raw*"))
    assert "Compared with" not in (before / "report.html").read_text()
    assert f'<a href="../{before.name}/report.html">' in (now / "report.html").read_text()
    played.images(worse="pass")
    assert played.run(*words, "--only-failed").returncode == 0
    last = played.run(*words, "--only-failed")
    assert (last.returncode, json.loads((tmp_path / "v.json").read_text())) == (0, [])
    assert [len(played.tries(name)) for name in ("good", "bad", "worse")] == [1, 2, 3]
