"""A lost machine is retried once, and the verdict reports it."""

from __future__ import annotations

from hotplate.cases.case_run import after_losses
from hotplate.errors import Outcome
from hotplate.report.terminal import summary
from hotplate.verdict.verdict import Subject, Verdict


def verdict(outcome: Outcome, *reasons: str) -> Verdict:
    return Verdict(
        subject=Subject(image="web.qcow2", template="t", server="s", facts={"memory": "1024 MiB"}),
        outcome=outcome,
        status="CREATE_COMPLETE",
        reasons=reasons,
        stages=(),
    )


def test_passed_second_try_passes_and_reports_the_first():
    final = after_losses(verdict(Outcome.PASSED), ["QEMU was killed"])
    assert final.passed
    assert final.exit_status == 0
    assert final.reasons == ("a first try lost its machine: QEMU was killed",)
    assert final.subject.facts["first try"] == "the machine was lost: QEMU was killed"
    assert final.subject.facts["memory"] == "1024 MiB"
    text = summary(final)
    assert "a first try lost its machine: QEMU was killed" in text
    assert text.splitlines()[-1] == "PASSED"


def test_each_loss_is_reported():
    final = after_losses(verdict(Outcome.LOST, "it went away"), ["a panic of QEMU", "killed"])
    assert final.exit_status == 4
    assert final.reasons[1:] == ("a second try lost its machine: killed", "it went away")
    assert final.subject.facts["first try"] == "the machine was lost: a panic of QEMU"
    assert final.subject.facts["second try"] == "the machine was lost: killed"
