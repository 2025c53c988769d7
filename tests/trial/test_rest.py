"""hotplate.trial.rest: a guest at rest is distinguished from a slow one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hotplate.events import classify
from hotplate.events.kinds import MachineExit
from hotplate.events.log import EventLog
from hotplate.trial import rest as rest_module
from hotplate.trial.guests import Guests
from hotplate.trial.rest import InGuest, Rest, Work, is_idle, is_waited_for
from hotplate.verdict.stages import Stage

AT_REST = """\
degraded
ActiveState=inactive
NRestarts=0
ControlGroup=
"""


@pytest.mark.parametrize(
    ("text", "booted", "busy", "crashing"),
    [
        (AT_REST, True, False, False),
        (AT_REST.replace("degraded", "running"), True, False, False),
        (AT_REST.replace("degraded", "starting"), False, False, False),
        # A unit of the boot, such as cloud-final.service, has not ended.
        (f"{AT_REST}job 81 cloud-final.service start running\n", True, True, False),
        # The agent is about to be started once more: that alone is no work of the boot.
        (f"{AT_REST}job 81 os-collect-config.service start waiting\n", True, False, False),
        # A hook that sleeps for ten minutes: its process runs, and it holds the lock.
        (f"{AT_REST}process 400\nprocess 412\n", True, True, False),
        (f"{AT_REST}process 400\nlocked\n", True, True, False),
        (f"{AT_REST}process 400\n", True, False, False),
        (AT_REST.replace("NRestarts=0", "NRestarts=5"), True, False, True),
        (AT_REST.replace("NRestarts=0", "NRestarts=4"), True, False, False),
        ("", False, False, False),
        ("Failed to connect to bus", False, False, False),
    ],
)
def test_guest_report_is_parsed(text, booted, busy, crashing):
    inside = InGuest.read(text)
    assert (inside.booted, inside.busy, inside.crashing) == (booted, busy, crashing)


def rest_of(story, *lines, work=dict, running=True):
    """Return the look at the story's server, whose console ends with these lines."""
    machine = SimpleNamespace(running=running, work=work, console=SimpleNamespace(lines=lines))
    spec = SimpleNamespace(id=story.tracker.server, name="web")
    server = SimpleNamespace(machine=machine, spec=spec)
    trackers = {story.tracker.server: story.tracker}
    return Rest(Guests(story.events, lambda _: server, trackers))


def idle_rests(story, monkeypatch, report):
    """Return whether an idle machine rests whose guest reports this."""
    monkeypatch.setattr(rest_module, "ask", lambda _: report)
    monkeypatch.setattr(rest_module, "LOOK_SECONDS", 0.0)
    rest = rest_of(story, work=lambda: {"cpu": Work(0.0, 0.0)})
    # A machine is idle by two looks.
    rest.why()
    return bool(rest.why())


@pytest.mark.parametrize(
    ("state", "rests"), [("DOWN", True), ("UP", False)], ids=["switched off", "up"]
)
def test_guest_that_switched_its_link_off_rests_without_long_silence(
    story, monkeypatch, state, rests
):
    """Only a guest that cannot tell is given the time to speak; see SILENT_SECONDS."""
    story.deployed = False
    story.tracker.checked = True
    story.boot()
    story.metadata()
    story.console("Cloud-init v. 22.4.2 finished at ... Datasource DataSourceOpenStack")
    report = InGuest.read(f"{AT_REST}address ens4 {state} 10.0.0.2/24\n")
    assert idle_rests(story, monkeypatch, report) is rests


@pytest.mark.parametrize("config_due", [False, True])
def test_guest_that_never_had_a_network_rests_unless_an_agent_is_due(
    story, monkeypatch, config_due
):
    """Nothing in an image without an agent brings its network up once its boot has ended."""
    story.deployed = False
    story.boot()
    if config_due:
        story.user_data("cfn-init-data")
    story.console("[  OK  ] Reached target multi-user.target - Multi-User System.")
    report = InGuest.read(f"{AT_REST}LoadState=not-found\naddress ens4 DOWN\n")
    assert idle_rests(story, monkeypatch, report) is not config_due


@pytest.mark.parametrize("asked", [True, False])
def test_plain_image_rests_without_long_silence(story, monkeypatch, asked):
    """Debian's minimal sid has no program "ip", so that such a guest does not say it is offline."""
    story.deployed = False
    story.tracker.asked = asked
    story.boot()
    story.console("Cloud-init v. 26.2 finished at ... Datasource DataSourceNone.")
    report = InGuest.read(f"{AT_REST}LoadState=not-found\n")
    assert idle_rests(story, monkeypatch, report) is asked


@pytest.mark.parametrize(
    ("reasons", "rests"),
    [
        (["guest-shutdown"], True),
        # It has not started yet, or was switched off from outside, which may switch it on again.
        ([], False),
        (["power-cut"], False),
        (["guest-shutdown", "power-cut"], False),
    ],
)
def test_guest_that_switched_itself_off_is_at_rest(story, reasons, rests):
    story.power()
    for each in reasons:
        story.events.add(MachineExit(0, each, ""), server=story.tracker.server)
    assert bool(rest_of(story, running=False).why()) is rests


MENU = "      Press enter to boot the selected OS, `e' to edit the commands       "
REST_OF_MENU = "      before booting or `c' for a command-line.    *Debian GNU/Linux    "


@pytest.mark.parametrize(
    ("unfinished", "rests"),
    [
        (REST_OF_MENU, True),
        (f"{REST_OF_MENU}The highlighted entry will be executed automatically in 30s.", False),
    ],
)
def test_waiting_menu_is_at_rest(story, unfinished, rests):
    """The menu waits in a loop, so its machine is never idle; a countdown emits no event."""
    story.power()
    story.console(MENU)
    assert bool(rest_of(story, MENU, unfinished).why()) is rests


@pytest.mark.parametrize(
    ("line", "agent"),
    [
        ("LoadState=loaded", "inactive"),
        ("LoadState=masked", "inactive"),
        # An image with another agent, or a timer for it, is given the whole patience.
        ("LoadState=not-found", ""),
        ("TriggeredBy=os-collect-config.timer", ""),
        ("TriggeredBy=", "inactive"),
    ],
)
def test_agent_started_otherwise_may_still_come(line, agent):
    assert InGuest.read(f"{AT_REST}{line}\n").agent == agent


@pytest.mark.parametrize(
    ("devices", "online"),
    [
        (["lo UNKNOWN 127.0.0.1/8", "ens4 UP 169.254.169.15/24 metric 1024"], True),
        (["lo UNKNOWN 127.0.0.1/8", "ens4 DOWN"], False),
        # "ip link set ens4 down" leaves the device its address.
        (["lo UNKNOWN 127.0.0.1/8", "ens4@if2 DOWN 10.0.0.2/24"], False),
        (["ens4 UNKNOWN 10.0.0.2/24", "ens5 DOWN 10.1.0.2/24"], True),
        (["lo UNKNOWN 127.0.0.1/8 ::1/128"], False),
        (["lo UNKNOWN 127.0.0.1/8 ::1/128", "ens4 UP fe80::f816:3eff:fe00:5/64"], False),
        (["ens4 UP 2001:db8::5/64 fe80::f816:3eff:fe00:5/64"], True),
        # No answer: there is no ip.
        ([], True),
    ],
)
def test_guest_without_address_is_offline(devices, online):
    text = AT_REST + "".join(f"address {line}\n" for line in devices)
    assert InGuest.read(text).online == online


@pytest.mark.parametrize(
    ("threads", "idle"),
    [
        ([(0.1, 0.0), (0.3, 0.1)], True),
        # Measured on a host with six times more to do than processors: timers wait for their turn.
        ([(0.09, 2.57), (0.39, 2.32), (0.48, 2.73)], True),
        ([(9.5, 0.1)], False),
        # It works, and a busy host gives it little time.
        ([(1.5, 8.4), (0.1, 0.2)], False),
        ([(1.0, 3.0), (1.5, 2.0)], False),
        ([], False),
    ],
)
def test_machine_without_work_is_idle(threads, idle):
    after = {str(number): Work(*each) for number, each in enumerate(threads)}
    assert is_idle({}, after, 10.0) == idle
    before = {name: Work(100.0, 50.0) for name in after}
    later = {name: Work(100.0 + each.ran, 50.0 + each.waited) for name, each in after.items()}
    assert is_idle(before, later, 10.0) == idle


def test_boot_agent_and_deployment_are_awaited(story):
    story.boot()
    assert is_waited_for(story.tracker)
    story.up()
    assert story.tracker.missing() is Stage.AGENT_POLLED
    assert is_waited_for(story.tracker)
    story.deployment("IN_PROGRESS")
    story.poll()
    assert is_waited_for(story.tracker)


def test_wait_condition_is_not_awaited(story):
    """A script may signal it at any time."""
    story.signalling()
    story.wait_condition()
    assert story.tracker.missing() is Stage.SIGNAL_RECEIVED
    assert not is_waited_for(story.tracker)


def test_complete_server_is_not_awaited(passed):
    assert not is_waited_for(passed.tracker)


@pytest.mark.parametrize(
    ("line", "waiting"),
    [
        ("[  *** ] A start job is running for site-setup.service (1min 2s / no limit)", True),
        ("[ ***  ] A start job is running for Wait for Network (5s / 2min 1s)", True),
        ("[   ***] Job site-setup.service/start running (1min 2s / no limit)", True),
        (
            "[ ***] (3 of 3) Job systemd-logind.service\u2026tart running (1min 40s / 2min 56s)",
            True,
        ),
        ("[  OK  ] Started site-setup.service.", False),
        ("my job is running for you", False),
    ],
)
def test_line_about_running_job_is_no_news(line, waiting):
    event = EventLog().emit("console", "line", server="a", text=line)
    assert classify.is_waiting(event) == waiting
