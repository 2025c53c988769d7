"""A lost machine is retried once, a CPU that falls short until one does; the verdict reports it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_disk import make

from hotplate.cases.case_run import CaseRun, after_cpus, after_losses
from hotplate.cases.request import Request
from hotplate.cases.table import Case
from hotplate.errors import HostError, Outcome
from hotplate.events.kinds import ConsoleLine, PowerOn
from hotplate.events.log import EventLog
from hotplate.image import checksum
from hotplate.interrupts import Interrupts
from hotplate.report.html import RunReport
from hotplate.report.terminal import summary
from hotplate.settings import Settings
from hotplate.verdict.diagnosis import Diagnosis
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


LINE = "Fatal glibc error: CPU does not support x86-64-v2"


@pytest.mark.parametrize(
    ("outcome", "fault", "setting", "level"),
    [
        (Outcome.HOST, "bad-cpu", "auto", "x86-64-v2"),
        (Outcome.FAILED, "unknown", "auto", "x86-64-v2"),
        # A service of the image was killed, and nothing waited for it.
        (Outcome.PASSED, "", "auto", "x86-64-v2"),
        (Outcome.GIVEN_UP, "", "x86-64-v1", "x86-64-v2"),
        (Outcome.HOST, "bad-cpu", "x86-64-v2", "x86-64-v3"),
        (Outcome.HOST, "bad-cpu", "x86-64-v3", ""),
        (Outcome.HOST, "bad-cpu", "qemu64", ""),
        (Outcome.HOST, "host-disk", "auto", ""),
        (Outcome.INTERRUPTED, "", "auto", ""),
        (Outcome.USAGE, "", "auto", ""),
        (Outcome.ERROR, "", "auto", ""),
    ],
)
def test_run_is_repeated_on_a_better_cpu_when_it_tells_of_the_image(outcome, fault, setting, level):
    events = EventLog()
    events.add(PowerOn(1, cpu="qemu64"), server="web")
    events.add(ConsoleLine(LINE), server="web")
    diagnosis = Diagnosis(fault, None, "seen", "advice") if fault else None
    done = replace(verdict(outcome, "why"), diagnosis=diagnosis)
    settings = replace(Settings(), cpu=setting)
    run = CaseRun(Request(settings), Case("web", Path("web.qcow2")), Interrupts())
    why = run._retry(RunReport(done, tuple(events)))
    assert (run.settings.cpu, bool(why)) == (level or setting, bool(level))
    if level:
        assert why.endswith(f'"{LINE}"; trying once more with {level}')


def test_passed_try_on_a_better_cpu_reports_the_option():
    lacks = [f'"{LINE}"; --cpu x86-64-v2 begins with a CPU that has it']
    final = after_cpus(verdict(Outcome.PASSED), lacks)
    assert final.passed
    assert f"a try on a lesser CPU ended: {lacks[0]}" in summary(final)
    assert final.subject.facts["lesser CPUs"] == lacks[0]
    assert after_cpus(verdict(Outcome.PASSED), []) == verdict(Outcome.PASSED)


def test_next_run_of_an_image_does_not_hash_it_again(tmp_path, monkeypatch):
    hashed = []
    monkeypatch.setattr(checksum, "hash_file", lambda file: hashed.append(file) or "0" * 64)

    def no_machine(*_, **__):
        raise HostError("there is no machine")

    monkeypatch.setattr("hotplate.trial.trial.Trial", no_machine)
    monkeypatch.chdir(tmp_path)
    image = make(tmp_path / "web.raw")
    request = Request(replace(Settings(), cache=tmp_path / "cache"))
    for _ in range(2):
        done = CaseRun(request, Case("web", image), Interrupts()).run()
        assert done.verdict.reasons == ("there is no machine",)
    assert hashed == [image]
