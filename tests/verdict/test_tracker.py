from __future__ import annotations

from dataclasses import replace

import pytest

from hotplate.events.kinds import GuestLogin
from hotplate.verdict.stages import DEPLOYED, ORDER, Stage
from hotplate.verdict.tracker import StageTracker
from hotplate.verdict.verdict import stage_times


def test_good_run_reaches_every_stage_once(passed):
    assert passed.tracker.missing() is None
    assert sorted(passed.reached, key=ORDER.index) == list(DEPLOYED)
    marks = passed.tracker.marks()
    assert [mark.stage for mark in marks] == list(DEPLOYED)
    assert [mark.at for mark in marks] == sorted(mark.at for mark in marks)
    assert not any(mark.implied for mark in marks)


def test_late_tracker_reaches_same_state(passed):
    late = StageTracker(passed.events, passed.tracker.server)
    assert [m.stage for m in late.marks()] == [m.stage for m in passed.tracker.marks()]
    assert late.started == passed.tracker.started


def test_silent_image_is_proved_by_requests_alone(story):
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


def test_initramfs_is_not_a_booted_image(story):
    story.power()
    story.console(
        "Welcome to GRUB!",
        "Welcome to Fedora Linux 40 dracut-059 (Initramfs)!",
        "Welcome to GRUB!",
        "[  OK  ] Reached target initrd-root-device.target - Initrd Root Device.",
    )
    assert story.tracker.missing() == Stage.BOOTED


def test_events_of_other_servers_are_ignored(story):
    story.power()
    story.emit("metadata", "request", server="another", method="GET", path="/x/user_data")
    story.emit("cfn", "request", server="", method="GET", action="DescribeStackResource")
    assert story.tracker.missing() == Stage.BOOTED


def test_server_without_deployments_has_to_get_metadata(story):
    story.deployed = False
    story.boot()
    assert story.tracker.missing() == Stage.NETWORK_UP
    story.user_data("cloud-config")
    story.metadata()
    assert story.tracker.missing() is None
    assert story.tracker.expected[-1] == Stage.METADATA_SERVED


def test_server_with_address_to_poll_has_to_poll(story):
    story.deployed = False
    story.up()
    assert story.tracker.missing() == Stage.AGENT_POLLED
    story.poll()
    assert story.tracker.missing() is None
    assert story.tracker.expected[-1] == Stage.AGENT_POLLED


def test_deployment_without_signal_ends_with_its_hook(story):
    """Heat's NO_SIGNAL: the resource is COMPLETE as soon as it is made."""
    story.deployed = False
    story.up()
    story.expect(story.wanted(transport="NO_SIGNAL"))
    story.deployment("COMPLETE")
    story.poll()
    story.marker("received")
    story.marker("started")
    assert story.tracker.missing() == Stage.HOOK_FINISHED
    story.marker("finished", status=0)
    assert story.tracker.missing() is None
    assert story.tracker.expected[-1] == Stage.HOOK_FINISHED


def test_signalled_marker_is_ignored_when_heat_wants_no_signal(story):
    story.deployed = False
    story.up()
    story.expect(story.wanted(transport="NO_SIGNAL"), story.wanted("two", "second"))
    story.marker("finished", status=0)
    story.marker("signalled")
    assert Stage.SIGNAL_RECEIVED not in story.reached
    assert story.tracker.undelivered() == ["second"]


def test_failed_hook_is_a_failure_when_heat_wants_no_signal(story):
    story.deployed = False
    story.up()
    story.expect(story.wanted(transport="NO_SIGNAL"))
    story.marker("finished", status=3)
    diagnosis = story.diagnosis("CREATE_COMPLETE")
    assert (diagnosis.fault, diagnosis.stage) == ("hook-failed", Stage.HOOK_FINISHED)


def test_completion_in_heat_may_precede_runners_marker(story):
    story.finished()
    story.deployment("COMPLETE")
    assert story.tracker.missing() is None


def test_closed_tracker_ignores_events(story):
    story.power()
    story.tracker.close()
    story.boot()
    assert story.tracker.missing() == Stage.BOOTED


def test_rejected_deployment_is_not_proved_by_its_signal(story):
    story.delivered()
    story.marker("rejected", reason="no hook")
    story.signal()
    story.deployment("FAILED", "no hook")
    assert story.tracker.missing() == Stage.HOOK_STARTED
    assert Stage.HOOK_STARTED not in [mark.stage for mark in story.tracker.marks()]


def test_signal_alone_is_not_accepted(story):
    story.finished()
    story.signal()
    assert story.tracker.missing() == Stage.SIGNAL_ACCEPTED


def test_timed_out_deployment_is_not_accepted(story):
    story.finished()
    story.deployment("FAILED", "CREATE aborted (stack timed out)")
    assert story.tracker.missing() == Stage.SIGNAL_RECEIVED


def test_hanging_deployment_is_decisive(passed):
    passed.expect(passed.wanted(), passed.wanted("two", "second"))
    passed.marker_of("two", "received")
    passed.marker_of("two", "started")
    assert passed.tracker.missing() == Stage.HOOK_FINISHED
    assert passed.tracker.stuck().label == "second"
    passed.signal(resource="second")
    assert passed.tracker.missing() == Stage.SIGNAL_ACCEPTED


def test_running_deployment_is_named_before_waiting_ones(story):
    """The runner takes deployments one after the other."""
    story.deployed = False
    story.up()
    story.expect(*(story.wanted(each, f"{each}_deployment") for each in "abc"))
    story.poll()
    for each in "abc":
        story.marker_of(each, "received")
    story.marker_of("b", "started")
    assert story.tracker.missing() == Stage.HOOK_FINISHED
    assert story.tracker.stuck().label == "b_deployment"


def test_first_failed_deployment_is_named_before_later_one(story):
    """Heat ends the stack at the first failure; the runner is at the next one by then."""
    story.deployed = False
    story.up()
    story.expect(story.wanted("a", "first"), story.wanted("b", "second"))
    for each in "ab":
        story.marker_of(each, "received")
    story.marker_of("a", "started")
    story.marker_of("a", "finished", status=1)
    story.signal(resource="first")
    story.deployment("FAILED", "Deployment to server failed: 1", resource="first")
    story.marker_of("b", "started")
    story.deployment("FAILED", "CREATE aborted", resource="second")
    assert story.tracker.missing() is None
    assert story.tracker.stuck().label == "first"
    diagnosis = story.diagnosis("CREATE_FAILED")
    assert (diagnosis.fault, diagnosis.deployment) == ("hook-failed", "first")


def test_completion_counts_for_its_own_resource(story):
    """Both have the name of one config, which cannot distinguish them."""
    story.deployed = False
    story.up()
    story.expect(story.wanted("a", "one"), story.wanted("b", "two"))
    for each in "ab":
        story.marker_of(each, "received")
        story.marker_of(each, "started")
        story.marker_of(each, "finished", status=0)
    story.deployment("COMPLETE", resource="two")
    by_label = {each.label: each.missing() for each in story.tracker.deployments}
    assert by_label == {"one": Stage.SIGNAL_RECEIVED, "two": None}


def test_hanging_hook_was_delivered(story):
    story.delivered()
    story.marker("started")
    assert story.tracker.undelivered() == []
    assert story.tracker.missing() == Stage.HOOK_FINISHED


def test_signal_is_accepted_by_heats_event(story):
    story.finished()
    story.signal()
    assert story.tracker.missing() == Stage.SIGNAL_ACCEPTED
    story.taken()
    assert story.tracker.missing() is None


def test_unseen_deployment_is_undelivered(passed):
    passed.expect(passed.wanted(), passed.wanted("two", "later"))
    assert passed.tracker.missing() == Stage.DEPLOYMENT_DELIVERED
    assert passed.tracker.undelivered() == ["later"]


def test_second_deployment_counts_after_update(passed):
    passed.deployment("IN_PROGRESS")
    passed.expect(passed.wanted("second"))
    passed.marker_of("second", "received")
    assert passed.tracker.missing() == Stage.HOOK_STARTED
    passed.signal()
    assert passed.tracker.missing() == Stage.SIGNAL_ACCEPTED
    assert passed.tracker.stuck().id == "second"
    passed.deployment("COMPLETE")
    assert passed.tracker.missing() is None


def test_withdrawn_deployment_is_not_due(story):
    story.delivered()
    story.expect()
    assert story.tracker.missing() is None


def test_wait_condition_signal_is_due_of_server_with_its_address(story):
    story.signalling()
    assert story.tracker.missing() is None
    story.wait_condition()
    assert story.tracker.missing() == Stage.SIGNAL_RECEIVED
    assert story.tracker.stuck().label == "handle"
    path = f"/v1/waitcondition/arn:openstack:heat::t:stacks/demo/{story.STACK}/resources/handle"
    story.request("cfn", "PUT", path, 200)
    assert story.tracker.missing() == Stage.SIGNAL_ACCEPTED
    kind = "AWS::CloudFormation::WaitConditionHandle"
    story.resource("handle", kind, "COMPLETE", action="SIGNAL")
    assert story.tracker.missing() is None


def test_signal_is_not_due_when_others_completed_wait_condition(story):
    story.signalling()
    story.wait_condition()
    story.wait_condition("COMPLETE")
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
def test_poll_is_seen_for_each_transport(story, service, method, path):
    story.user_data("cfn-init-data")
    story.request(service, method, path, 200, action="DescribeStackResource")
    assert story.tracker.reached(Stage.AGENT_POLLED)


@pytest.mark.parametrize(
    ("service", "method", "path", "signal"),
    [
        ("cfn", "POST", "/v1/signal/arn:x:stacks/s/1/resources/d", "stacks/s/1/resources/d"),
        ("heat", "POST", "/v1/p/stacks/s/1/resources/d/signal", "stacks/s/1/resources/d"),
        ("swift", "PUT", "/v1/AUTH_p/stack/object", "/v1/AUTH_p/stack/object"),
        ("zaqar", "POST", "/v2/queues/q/messages", "/queues/q/messages"),
    ],
)
def test_signal_is_seen_for_each_transport(story, service, method, path, signal):
    story.deployed = False
    story.expect(
        replace(story.wanted(), signal=signal), replace(story.wanted("b"), signal=signal + "b")
    )
    story.request(service, method, path, 200)
    assert [Stage.SIGNAL_RECEIVED in each.marks for each in story.tracker.deployments] == [
        True,
        False,
    ]


def test_deployment_never_served_is_not_due(story):
    """A captured image has markers of deployments from before."""
    story.finished()
    story.marker_of("of-another-life", "started")
    story.signal()
    story.deployment("COMPLETE")
    assert story.tracker.missing() is None
    assert [each.id for each in story.tracker.deployments] == [story.wanted().id]


def test_wait_condition_may_precede_its_server(story):
    story.wait_condition()
    story.signalling()
    assert story.tracker.missing() == Stage.SIGNAL_RECEIVED
    diagnosis = story.diagnosis()
    assert diagnosis.fault == "wait-signal-missing"
    assert '"handle"' in diagnosis.seen


def test_missing_program_of_user_data_is_named(story):
    """Heat's curl_cli in an image without curl, as in Heat's test_server_signal.yaml."""
    story.wait_condition()
    story.signalling()
    story.console("cloud-init[444]: /var/lib/cloud/instance/scripts/part-001: 3: curl: not found")
    diagnosis = story.diagnosis()
    assert diagnosis.fault == "user-data-program-missing"
    assert '"handle"' in diagnosis.seen
    assert "curl: not found" in diagnosis.seen


def test_program_that_heats_own_boothook_misses_is_not_blamed(story):
    """It goes on without cfn-create-aws-symlinks, which only images with heat-cfntools have."""
    story.signalling()
    story.wait_condition()
    boothook = "/var/lib/cloud/instances/i-1/boothooks/boothook.sh"
    missing = "cfn-create-aws-symlinks: command not found"
    story.console(f"cloud-init[64]: {boothook}: line 15: {missing}")
    assert story.diagnosis().fault == "wait-signal-missing"


def test_handle_is_not_signalled_by_longer_name(story):
    story.deployed = False
    story.boot()
    story.user_data("x", handles=(f"{story.STACK}/handle", f"{story.STACK}/handle2"))
    path = f"/v1/waitcondition/arn:openstack:heat::t:stacks/demo/{story.STACK}/resources/handle2"
    story.request("cfn", "PUT", path, 200)
    assert [bool(each.marks) for each in story.tracker.waits] == [False, True]


UNSEEN = frozenset({Stage.NETWORK_UP, Stage.METADATA_SERVED, Stage.AGENT_POLLED})


def test_unseen_stage_is_shown_but_not_due(story):
    tracker = StageTracker(story.events, story.tracker.server, unseen=UNSEEN)
    story.deployed = False
    story.boot()
    assert (tracker.missing(), story.tracker.missing()) == (None, Stage.NETWORK_UP)
    assert tracker.expected == (Stage.BOOTED,)
    assert {each.stage: each.absence for each in stage_times(tracker) if not each.visible} == {
        Stage.NETWORK_UP: "not visible here",
        Stage.METADATA_SERVED: "not visible here",
    }


def test_unseen_stage_is_proved_by_later_one(story):
    tracker = StageTracker(story.events, story.tracker.server, unseen=UNSEEN)
    story.power()
    assert tracker.missing() is Stage.BOOTED
    story.deployment("IN_PROGRESS")
    assert tracker.missing() is Stage.BOOTED
    story.deployment("COMPLETE")
    assert tracker.missing() is None
    assert [mark.stage for mark in tracker.marks()] == list(DEPLOYED)


def test_login_by_key_pair_proves_metadata(story):
    tracker = StageTracker(story.events, story.tracker.server, unseen=UNSEEN)
    story.deployed = False
    story.power()
    story.events.add(GuestLogin("root"), server=story.tracker.server)
    assert not tracker.reached(Stage.METADATA_SERVED)
    story.events.add(GuestLogin("debian", key_pair=True), server=story.tracker.server)
    assert tracker.reached(Stage.METADATA_SERVED)
    assert tracker.missing() is None
