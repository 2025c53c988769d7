from __future__ import annotations

import subprocess

import pytest

from hotplate.verdict import probes
from hotplate.verdict.health import AGENT
from hotplate.verdict.stages import ORDER, Stage


@pytest.mark.parametrize("stage", ORDER)
def test_every_stage_has_probes(stage):
    asked = {probe.name for probe in probes.for_stage(stage)}
    assert "failed-units" in asked
    assert ("agent-log" in asked) == (ORDER.index(stage) >= ORDER.index(Stage.METADATA_SERVED))


def test_complete_run_has_no_probes():
    assert probes.for_stage(None) == ()


@pytest.mark.parametrize("probe", probes.PROBES, ids=str)
def test_command_is_valid_shell(probe):
    subprocess.run(["sh", "-n", "-c", probe.command], check=True)


def test_answer_becomes_bounded_evidence(story):
    story.up()
    probe = next(each for each in probes.PROBES if each.name == "health")
    text = "x" * 100_000 + f"\n=== units\nId={AGENT}\nLoadState=not-found\n"
    probes.report(story.events, story.tracker.server, probe, status=0, text=text)
    assert len(list(story.events)[-1].detail["text"]) == probe.limit
    assert story.diagnosis().fault == "agent-missing"
