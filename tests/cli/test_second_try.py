"""A lost machine is tried once more, and the verdict says so."""

from __future__ import annotations

from hotplate.cli.case_run import after_a_loss
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


def test_a_second_try_that_passes_has_passed_and_tells_of_the_first():
    final = after_a_loss(verdict(Outcome.PASSED), "QEMU was killed")
    assert final.passed
    assert final.exit_status == 0
    assert final.reasons == ("a first try lost its machine: QEMU was killed",)
    assert final.subject.facts["first try"] == "the machine was lost: QEMU was killed"
    assert final.subject.facts["memory"] == "1024 MiB"
    text = summary(final)
    assert "a first try lost its machine: QEMU was killed" in text
    assert text.splitlines()[-1] == "PASSED"


def test_a_second_try_that_fails_fails():
    final = after_a_loss(verdict(Outcome.FAILED, "Heat says CREATE_FAILED"), "QEMU was killed")
    assert final.exit_status == 1
    assert len(final.reasons) == 2
