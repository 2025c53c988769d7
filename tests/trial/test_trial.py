"""Work in progress in the guests of a run, and guests that cannot continue."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from threading import Timer

import pytest

from hotplate.settings import Settings
from hotplate.trial.base import BaseTrial, at_work
from hotplate.trial.trial import stopped_by
from tests.conftest import KERNEL, LOGIN, SYSTEMD


def test_hook_is_at_work_between_its_start_and_its_end(story):
    story.delivered()
    assert at_work([story.tracker]) == ""
    story.marker("started")
    assert at_work([story.tracker]) == 'the hook of "deployment" in "server"'
    story.marker("finished", status=0)
    assert at_work([story.tracker]) == ""


def test_user_data_is_at_work_while_wait_condition_waits(story):
    story.signalling()
    story.wait_condition()
    assert at_work([story.tracker]) == ""
    story.console("Cloud-init v. 22.4.2 running 'modules:final' at ...")
    assert at_work([story.tracker]) == 'the user data in "server"'
    story.wait_condition("COMPLETE")
    assert at_work([story.tracker]) == ""


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lambda story: story.console("Kernel panic - not syncing: Attempted"), "kernel panicked"),
        (lambda story: story.emit("machine", "panic", action="pause"), "kernel panicked"),
        (lambda story: story.emit("machine", "exit", reason="lost", status=-9), "was lost"),
        (lambda story: story.emit("harness", "flood", fault="console-flood", text="much"), ""),
        (lambda story: story.console("debian login: "), ""),
    ],
)
def test_stopped_guest_is_recognised(story, happens, why):
    server = story.tracker.server
    story.boot()
    happens(story)
    reason = stopped_by(story.events, server)
    assert why in reason
    assert bool(reason) == bool(why)
    assert stopped_by(story.events, "another") == ""
    # A panic with "panic=-1" on the command line reboots.
    story.emit("machine", "reset", reason="guest-reset", by_guest=True)
    assert stopped_by(story.events, server) == ""


def test_verdict_waits_for_a_guest_that_reboots_meanwhile(passed):
    """As by cloud-init's cc_power_state_change, some seconds after its last stage."""
    trial = BaseTrial(
        None,  # type: ignore[arg-type]
        settings=Settings(patience=5),
        folder=Path("/nonexistent"),
        events=passed.events,
        say=print,
        on_reached=lambda mark, name: None,
    )
    trial.trackers["server"] = passed.tracker
    came_up = Timer(0.1, passed.console, (KERNEL, SYSTEMD, LOGIN))
    verdicts = []

    def judged():
        again = bool(verdicts)
        if not again:
            passed.console("systemd-shutdown[1]: Rebooting.")
        verdicts.append(passed.tracker.missing() is None)
        if not again:
            came_up.start()
        return verdicts[-1]

    with ExitStack() as owned:
        trial._watch_from(owned, at_rest=str)
        assert trial._verdict_at_rest(judged, settled=True)
    came_up.join()
    assert verdicts == [False, True]
