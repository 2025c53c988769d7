from __future__ import annotations

import pytest

from hotplate.verdict.stages import ORDER, Stage
from hotplate.verdict.tracker import StageTracker


def test_a_good_run_reaches_every_stage_once(passed):
    assert passed.tracker.missing() is None
    assert sorted(passed.reached, key=ORDER.index) == list(ORDER)
    marks = passed.tracker.marks()
    assert [mark.stage for mark in marks] == list(ORDER)
    assert [mark.at for mark in marks] == sorted(mark.at for mark in marks)
    assert not any(mark.implied for mark in marks)


def test_a_tracker_that_comes_late_knows_the_same(passed):
    late = StageTracker(passed.events, passed.tracker.server)
    assert [m.stage for m in late.marks()] == [m.stage for m in passed.tracker.marks()]
    assert late.started == passed.tracker.started


def test_a_silent_image_is_proved_by_the_servers_side_alone(story):
    story.power()
    story.metadata()
    story.deployment("IN_PROGRESS")
    story.poll()
    story.signal()
    story.deployment("COMPLETE")
    assert story.tracker.missing() is None
    implied = {mark.stage for mark in story.tracker.marks() if mark.implied}
    assert implied == {
        Stage.BOOTED,
        Stage.DEPLOYMENT_DELIVERED,
        Stage.HOOK_STARTED,
        Stage.HOOK_FINISHED,
    }


def test_an_initramfs_is_not_a_booted_image(story):
    story.power()
    story.console(
        "Welcome to GRUB!",
        "Welcome to Fedora Linux 40 dracut-059 (Initramfs)!",
        "Welcome to GRUB!",
        "[  OK  ] Reached target initrd-root-device.target - Initrd Root Device.",
    )
    assert story.tracker.missing() == Stage.BOOTED


def test_another_servers_events_are_not_ours(story):
    story.power()
    story.emit("metadata", "request", server="another", method="GET", path="/x/user_data")
    story.emit("cfn", "request", server="", method="GET", action="DescribeStackResource")
    assert story.tracker.missing() == Stage.BOOTED


def test_a_run_without_deployments_ends_early(story):
    story.tracker.close()
    tracker = StageTracker(story.events, story.tracker.server, until=Stage.METADATA_SERVED)
    story.boot()
    assert tracker.missing() == Stage.NETWORK_UP
    story.metadata()
    assert tracker.missing() is None


def test_closing_ends_it(story):
    story.power()
    story.tracker.close()
    story.boot()
    assert story.tracker.missing() == Stage.BOOTED


def test_a_rejected_deployment_is_not_proved_by_its_signal(story):
    story.delivered()
    story.marker("rejected", reason="no hook")
    story.signal()
    story.deployment("FAILED", "no hook")
    assert story.tracker.missing() == Stage.HOOK_STARTED
    assert Stage.HOOK_STARTED not in [mark.stage for mark in story.tracker.marks()]


def test_a_signal_alone_is_not_accepted(story):
    story.finished()
    story.signal()
    assert story.tracker.missing() == Stage.SIGNAL_ACCEPTED


def test_a_deployment_that_times_out_was_not_accepted(story):
    story.finished()
    story.deployment("FAILED", "CREATE aborted (stack timed out)")
    assert story.tracker.missing() == Stage.SIGNAL_RECEIVED


@pytest.mark.parametrize("second", ["demo-second-aaaaaaaaaaaa", "second"])
def test_the_slowest_deployment_decides(passed, second):
    passed.emit(
        "console", "line", text=f'heat-config: received id=two group=script name="{second}"'
    )
    passed.emit("console", "line", text=f'heat-config: started id=two group=script name="{second}"')
    assert passed.tracker.missing() == Stage.HOOK_FINISHED
    assert passed.tracker.stuck().id == "two"
    passed.request(
        "cfn",
        "POST",
        "/v1/signal/arn%3Aopenstack%3Aheat%3A%3At%3Astacks/demo/1/resources/second",
        200,
    )
    assert passed.tracker.missing() == Stage.SIGNAL_ACCEPTED
    assert passed.tracker.stuck().resource == "second"


def resource(story, name, status):
    story.emit(
        "stack",
        "resource",
        server="",
        stack="demo",
        resource=name,
        type="OS::Heat::SoftwareDeployment",
        action="CREATE",
        status=status,
    )


def test_deployments_that_are_named_after_one_config_are_told_apart(story):
    """Two at once, by names that do not tell the resource: the runner takes them in turn."""
    story.up()
    for name in ("one", "two"):
        resource(story, name, "IN_PROGRESS")
    story.poll()
    for each in "ab":
        story.console(
            f'heat-config: received id={each} group=script name="demo-config-{each * 12}"'
        )
    assert story.tracker.undelivered() == []
    for each, name in zip("ab", ("two", "one"), strict=True):
        line = f'id={each} group=script name="demo-config-{each * 12}"'
        story.console(f"heat-config: started {line}")
        assert story.tracker.missing() == (
            Stage.HOOK_STARTED if each == "a" else Stage.HOOK_FINISHED
        )
        story.console(f"heat-config: finished {line} status=0")
        path = f"/v1/signal/arn:openstack:heat::t:stacks/demo/1/resources/{name}"
        story.request("cfn", "POST", path, 200)
        story.console(f"heat-config: signalled {line} status=0")
        resource(story, name, "COMPLETE")
    assert story.tracker.missing() is None
    assert {track.id: track.resource for track in story.tracker.deployments} == {
        "a": "two",
        "b": "one",
    }


def test_a_hook_that_hangs_was_delivered(story):
    story.delivered()
    story.marker("started")
    assert story.tracker.undelivered() == []
    assert story.tracker.missing() == Stage.HOOK_FINISHED


def test_heats_own_word_accepts_a_signal(story):
    story.finished()
    story.signal()
    assert story.tracker.missing() == Stage.SIGNAL_ACCEPTED
    story.taken()
    assert story.tracker.missing() is None


def test_a_deployment_that_heat_waits_for_and_nobody_saw(passed):
    passed.emit(
        "stack",
        "resource",
        server="",
        stack="demo",
        resource="later",
        type="OS::Heat::SoftwareDeployment",
        action="CREATE",
        status="IN_PROGRESS",
    )
    assert passed.tracker.missing() == Stage.DEPLOYMENT_DELIVERED
    assert passed.tracker.undelivered() == ["later"]


def test_after_an_update_the_second_deployment_counts(passed):
    name = "demo-config-3p6v2ckq7xan"
    passed.deployment("IN_PROGRESS")
    passed.console(f'heat-config: received id=second group=script name="{name}"')
    assert passed.tracker.missing() == Stage.HOOK_STARTED
    passed.signal()
    assert passed.tracker.missing() == Stage.SIGNAL_ACCEPTED
    assert passed.tracker.stuck().id == "second"
    passed.deployment("COMPLETE")
    assert passed.tracker.missing() is None


def test_a_wait_condition_is_a_signal_too(story):
    story.up()
    story.poll()
    story.request(
        "cfn", "PUT", "/v1/waitcondition/arn:openstack:heat::t:stacks/demo/1/resources/handle", 200
    )
    assert story.tracker.missing() == Stage.SIGNAL_ACCEPTED
    story.emit(
        "stack",
        "resource",
        server="",
        stack="demo",
        resource="wait",
        type="AWS::CloudFormation::WaitCondition",
        action="CREATE",
        status="COMPLETE",
    )
    assert story.tracker.missing() is None


@pytest.mark.parametrize(
    ("service", "method", "path"),
    [
        ("cfn", "GET", "/v1/"),
        ("heat", "GET", "/v1/p/stacks/demo/1/resources/server/metadata"),
        ("swift", "GET", "/v1/AUTH_p/server/object"),
        ("zaqar", "DELETE", "/v2/queues/q/messages"),
    ],
)
def test_each_transport_polls(story, service, method, path):
    story.request(service, method, path, 200, action="DescribeStackResource")
    assert story.tracker.reached(Stage.AGENT_POLLED)


@pytest.mark.parametrize(
    ("service", "method", "path"),
    [
        ("cfn", "POST", "/v1/signal/arn:x:stacks/demo/1/resources/deployment"),
        ("heat", "POST", "/v1/p/stacks/demo/1/resources/deployment/signal"),
        ("swift", "PUT", "/v1/AUTH_p/stack/object"),
        ("zaqar", "POST", "/v2/queues/q/messages"),
    ],
)
def test_each_transport_signals(story, service, method, path):
    story.request(service, method, path, 200)
    assert story.tracker.reached(Stage.SIGNAL_RECEIVED)
