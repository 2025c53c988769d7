from __future__ import annotations

import json

import pytest

from hotplate.errors import Outcome
from hotplate.verdict.stages import DEPLOYED, Stage


def verdict_of(story, status="CREATE_COMPLETE", **more):
    return story.result(
        status,
        image="/images/trixie.qcow2",
        template="stack.yaml",
        facts={"accelerator": "tcg"},
        **more,
    )


def test_good_run_passes(passed):
    verdict = verdict_of(passed, outputs={"result": "hello"})
    assert verdict.passed
    assert verdict.exit_status == 0
    assert verdict.last_line() == "PASSED"
    assert [each.stage for each in verdict.stages] == list(DEPLOYED)
    assert all(each.seconds is not None and each.seconds >= 0 for each in verdict.stages)


def test_complete_stack_does_not_pass_without_stages(story):
    story.up()
    verdict = verdict_of(story)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.diagnosis.stage == Stage.AGENT_POLLED


def test_stages_do_not_pass_without_complete_stack(passed):
    verdict = verdict_of(passed, status="CREATE_IN_PROGRESS")
    assert verdict.outcome is Outcome.FAILED
    assert verdict.last_line().startswith("FAILED: Heat says CREATE_IN_PROGRESS")


def test_unmet_expectation_does_not_pass(passed):
    verdict = verdict_of(passed, problems=['the output "result" is "no", "yes" was expected'])
    assert not verdict.passed
    assert "the output" in verdict.last_line()


def test_lost_machine_is_not_a_failed_image(story):
    story.up()
    story.emit("machine", "exit", status=-9, reason="lost", message="")
    verdict = verdict_of(story, status="CREATE_IN_PROGRESS")
    assert verdict.outcome is Outcome.LOST
    assert verdict.last_line().startswith("MACHINE LOST: not reached: agent polled: the machine")


def test_panic_of_emulation_is_not_the_images(story):
    """The lines are those of a guest with two processors under QEMU 7.2 (Debian 12)."""
    story.power()
    story.console("[    4.034736] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI")
    assert verdict_of(story, status="CREATE_IN_PROGRESS").outcome is Outcome.FAILED
    story.console("[    4.057501] Kernel panic - not syncing: Fatal exception in interrupt")
    verdict = verdict_of(story, status="CREATE_IN_PROGRESS")
    assert verdict.outcome is Outcome.LOST
    assert "int3" in verdict.last_line()
    assert "--cpus 1" in verdict.last_line()


def test_late_timer_on_overloaded_host_is_not_the_images(story):
    """Linux counts the ticks in a period measured in processor cycles (check_timer())."""
    story.power()
    story.console("[    0.06] Kernel panic - not syncing: IO-APIC + timer doesn't work!  Boot with")
    verdict = verdict_of(story, status="CREATE_IN_PROGRESS")
    assert verdict.outcome is Outcome.LOST
    assert verdict.last_line().startswith("MACHINE LOST: not reached: ")
    assert "this says nothing about the image" in verdict.last_line()


def test_silent_machine_that_is_lost_is_not_blamed_on_image(story):
    story.power()
    story.emit("machine", "exit", status=-9, reason="lost", message="")
    assert verdict_of(story, status="CREATE_IN_PROGRESS").outcome is Outcome.LOST


def test_machine_lost_during_inspection_is_lost(passed):
    passed.emit("machine", "exit", status=-9, reason="lost", message="")
    asked = ['server "web": the guest could not be asked: the machine is off']
    verdict = verdict_of(passed, problems=asked)
    assert verdict.outcome is Outcome.LOST
    lost = "MACHINE LOST: the machine was lost while the guest was being examined"
    assert verdict.last_line().startswith(lost)


@pytest.mark.parametrize("status", ["", "CREATE_FAILED"])
def test_last_line_names_stage_and_advice(story, status):
    story.up()
    story.poll(403)
    line = verdict_of(story, status=status).last_line()
    assert line.startswith("FAILED: not reached: deployment delivered: the agent's polls were")
    assert "\n" not in line


def test_json_is_serialisable_and_complete(story):
    story.up()
    document = json.loads(json.dumps(verdict_of(story, status="CREATE_FAILED").to_json()))
    assert document["passed"] is False
    assert document["diagnosis"]["stage"] == "agent polled"
    assert [each["stage"] for each in document["stages"]] == [str(stage) for stage in DEPLOYED]
    assert document["stages"][-1]["seconds"] is None
    assert document["facts"] == {"accelerator": "tcg"}


def test_last_line_names_first_of_several_unmet_expectations(passed):
    verdict = verdict_of(passed, problems=["the first is wrong", "the second is wrong"])
    assert verdict.last_line() == "FAILED: the first is wrong (one of 2 reasons, see above)"
    assert verdict.unmet == ("the first is wrong", "the second is wrong")


def test_awaited_resource_is_named_when_no_server_is_due(story):
    """A wait condition that nothing signals, with a booted guest that has nothing else to do."""
    story.deployed = False
    story.boot()
    story.metadata()
    story.wait_condition()
    verdict = verdict_of(story, status="CREATE_IN_PROGRESS")
    assert verdict.diagnosis is None
    assert 'Heat waits for OS::Heat::WaitCondition "wait"' in verdict.last_line()


def test_given_up_run_is_not_a_failed_image(story):
    """The limit passed during a hook, and nothing else is known."""
    story.delivered()
    story.marker("started")
    given_up = 'given up 1800 s after it was begun, with the hook of "deployment" at work'
    verdict = verdict_of(story, status="CREATE_IN_PROGRESS", given_up=given_up)
    assert verdict.outcome is Outcome.GIVEN_UP
    assert verdict.exit_status == 4
    assert given_up in verdict.reasons
    assert verdict.last_line().startswith("GIVEN UP: not reached: hook finished: the hook of group")


def test_given_up_run_with_fault_is_failed(story):
    story.delivered()
    story.marker("started")
    story.marker("interrupted", reason="by a reboot")
    verdict = verdict_of(story, status="CREATE_IN_PROGRESS", given_up="given up")
    assert verdict.outcome is Outcome.FAILED
    assert verdict.diagnosis.fault == "hook-interrupted"
