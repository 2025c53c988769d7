"""Runs that are kept until the report of all is made."""

from __future__ import annotations

import pytest

from hotplate.errors import Outcome
from hotplate.report.html import RunReport
from hotplate.report.kept_runs import KeptRuns
from hotplate.verdict.verdict import Subject, Verdict


def run_of(name: str) -> RunReport:
    outcome = Outcome.PASSED if name == "good" else Outcome.FAILED
    return RunReport(Verdict(Subject(name), outcome, "", (), ()), (), page=f"{name}/report.html")


@pytest.mark.parametrize("where", ["disk", "memory"])
def test_runs_are_read_in_order_of_cases(tmp_path, where):
    kept = KeptRuns(["good", "never", "bad"], folder=tmp_path if where == "disk" else None)
    assert (len(kept), [*kept], [*kept.verdicts]) == (0, [], [])
    for name in ("bad", "good"):
        kept.add(name, run_of(name))
    assert [*kept] == [run_of("good"), run_of("bad")]
    assert (kept[0], kept[1:]) == (run_of("good"), [run_of("bad")])
    assert [each.passed for each in kept.verdicts] == [True, False]
    assert kept.verdicts[-1] == run_of("bad").verdict
    assert (len(kept), len(kept.verdicts)) == (2, 2)
    assert (kept.has("good"), kept.has("never")) == (True, False)
    kept.add("bad", run_of("good"))
    assert kept[1] == run_of("good")
    assert len(kept) == 2
    kept.close()
    assert (len(kept), [*kept], kept.has("good")) == (0, [], False)
