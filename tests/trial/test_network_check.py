"""The network of a guest is checked at the end of its boot."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from hotplate.errors import MachineLostError
from hotplate.guest.base import CommandResult
from hotplate.machine.wiring import Cables
from hotplate.trial import network_check, rest
from hotplate.trial.guests import Guests
from hotplate.trial.network_check import NetworkCheck, route_to
from hotplate.verdict.stages import Stage
from hotplate.verdict.tracker import StageTracker
from hotplate.verdict.verdict import StackResult, Subject, judge

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
ens4\t00A9FEA9\t00000000\t0001\t0\t0\t1024\t00FFFFFF\t0\t0\t0
"""
DEFAULT = ROUTES.replace("00A9FEA9", "00000000").replace("00FFFFFF", "00000000")
NO_ROUTES = ROUTES.splitlines()[0] + "\n"
DRIVE = "Cloud-init v. 22.4.2 finished at ... Datasource DataSourceConfigDrive [net=local,ver=2]"
NO_CLOUD = "Cloud-init v. 22.4.2 finished at ... Datasource DataSourceNoCloud [seed=/dev/vdb]"
RUNNING = "Cloud-init v. 22.4.2 running 'init-local' at ..."


class Guest:
    """A stub of a server: its ports answer or not, and it has a shell or not."""

    def __init__(self, story: Any) -> None:
        self.spec = SimpleNamespace(id=story.tracker.server, name="web")
        self.ports: dict[str, bool] = {'10.0.0.5 on "private"': True}
        self.routes: str | None = None
        self.state = "running"
        self.asked = 0
        self.machine = SimpleNamespace(running=True, wiring=SimpleNamespace(networked=False))

    @property
    def links(self) -> Any:
        return self

    def ask(self) -> dict[str, bool]:
        # An answer comes after the question.
        self.asked += 1
        return self.ports if self.asked > 1 else dict.fromkeys(self.ports, False)

    def shell(self, *, seconds: float) -> Any:
        if self.routes is None:
            raise MachineLostError("nobody is let in")
        return self

    def run(self, command: str, *, timeout: float) -> CommandResult:
        text = self.routes if command == network_check._ROUTES else self.state
        return CommandResult(command, 0, (text or "").encode(), b"")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("ANSWER_SECONDS", "LOOK_SECONDS", "QUIET_SECONDS"):
        monkeypatch.setattr(network_check, name, 0.0)


@pytest.fixture
def tracker(story):
    """Return the tracker of a plain server, without deployments."""
    story.deployed = False
    return StageTracker(story.events, story.tracker.server, checked=True)


@pytest.fixture
def guest(story):
    return Guest(story)


@pytest.fixture
def on_networks(guest):
    guest.machine.wiring = object.__new__(Cables)
    return guest


@pytest.fixture
def guests(story, guest, tracker):
    return Guests(story.events, lambda _: guest, {guest.spec.id: tracker})


@pytest.fixture
def check(guests):
    return NetworkCheck(guests)


def served(story):
    """Play up to the metadata of cloud-init, over a network that may be cloud-init's own."""
    story.boot()
    story.console(RUNNING)
    story.metadata()


def verdict_of(story, tracker, *, strict=False):
    return judge(
        Subject(image="web.qcow2"),
        story.events,
        [tracker],
        StackResult("CREATE_COMPLETE"),
        strict=strict,
        now=time.monotonic(),
    )


def test_network_is_checked_when_boot_has_ended(story, tracker, check, on_networks):
    served(story)
    check.look()
    assert tracker.missing() is None
    assert not tracker.done()
    story.console("Cloud-init v. 22.4.2 finished at ...")
    check.look()
    assert tracker.done()
    assert verdict_of(story, tracker).passed
    (up,) = [mark for mark in tracker.marks() if mark.stage is Stage.NETWORK_UP]
    assert "answered when its boot had ended" in up.evidence


@pytest.mark.parametrize("silent", ['10.0.0.5 on "private"', '10.1.0.5 on "backend"'])
def test_guest_fails_at_network_up_when_a_port_is_silent(
    story, tracker, check, on_networks, silent
):
    """A plain dib image: cloud-init's first stage has a lease, and nothing has one after it."""
    on_networks.ports = {'10.0.0.5 on "private"': True, '10.1.0.5 on "backend"': True}
    on_networks.ports[silent] = False
    served(story)
    story.console("Cloud-init v. 22.4.2 finished at ...")
    check.look()
    check.look()
    assert not tracker.done()
    check.conclude()
    verdict = verdict_of(story, tracker)
    assert verdict.diagnosis.fault == "network-silent"
    line = f"FAILED: not reached: network up: the guest does not answer at {silent}. "
    assert verdict.last_line().startswith(line)
    assert [each.seconds is None for each in verdict.stages] == [False, True, False]


@pytest.mark.parametrize(
    ("address", "waits"),
    [("address ens4 DOWN", False), ("address ens4 UP 10.0.0.5/24", True)],
    ids=["down", "up"],
)
def test_guest_that_says_itself_that_it_is_offline_is_not_waited_for(
    story, check, on_networks, monkeypatch, address, waits
):
    monkeypatch.setattr(network_check, "ANSWER_SECONDS", 2.0)
    on_networks.routes, on_networks.state = "", f"running\n{address}\n"
    on_networks.ports = {'10.0.0.5 on "private"': False}
    served(story)
    story.console("Cloud-init v. 22.4.2 finished at ...")
    check.conclude()
    # One question at first, and one for each look at the answers.
    assert (on_networks.asked > 2) == waits


def test_neutrons_addresses_are_not_asked_for_with_own_network_data(
    story, tracker, guest, guests, on_networks
):
    guest.ports = {'10.0.0.5 on "private"': False}
    own = NetworkCheck(guests, own_network_data=[guest.spec.name])
    served(story)
    story.console("Cloud-init v. 22.4.2 finished at ...")
    own.look()
    own.conclude()
    assert tracker.done()
    assert verdict_of(story, tracker).passed


@pytest.mark.parametrize("shown", [DRIVE, NO_CLOUD], ids=["config-drive", "nocloud"])
def test_drive_shows_metadata_but_no_network(story, tracker, check, on_networks, shown):
    story.boot()
    story.console(shown)
    assert tracker.missing() is Stage.NETWORK_UP
    assert Stage.NETWORK_UP not in [mark.stage for mark in tracker.marks()]
    check.look()
    assert tracker.done()
    (up,) = [mark for mark in tracker.marks() if mark.stage is Stage.NETWORK_UP]
    assert not up.implied


def test_seed_of_the_image_is_no_metadata_of_the_run(story, tracker, check, on_networks):
    story.boot()
    story.console(NO_CLOUD.replace("/dev/vdb", "/var/lib/cloud/seed/nocloud"))
    check.look()
    assert tracker.missing() is Stage.METADATA_SERVED


def test_seed_of_a_container_is_its_drive(story, tracker, check, on_networks):
    """A container has no drive, so that cloud-init finds the files in a folder of seeds."""
    seed = "/var/lib/cloud/seed/nocloud-net"
    story.emit("machine", "power-on", pid=1, machine="container", seed=seed)
    story.console(NO_CLOUD.replace("[seed=/dev/vdb]", f"[seed={seed}][dsmode=net]"))
    check.look()
    assert tracker.missing() is None


def test_polling_agent_proves_network_with_config_drive(story):
    story.boot()
    story.console(DRIVE)
    assert story.tracker.missing() is Stage.NETWORK_UP
    story.poll()
    assert story.tracker.missing() is Stage.DEPLOYMENT_DELIVERED


def test_answer_before_reboot_does_not_count(story, tracker, check, on_networks):
    served(story)
    story.console("Cloud-init v. 22.4.2 finished at ...")
    check.look()
    assert tracker.done()
    story.console("[  OK  ] Reached target reboot.target - System Reboot.")
    story.emit("machine", "reset", reason="guest-reset", by_guest=True)
    story.console("Booting from Hard Disk...", "Welcome to Debian GNU/Linux 12 (bookworm)!")
    check.look()
    assert not tracker.done()
    story.console("debian login: ")
    check.look()
    assert tracker.done()


def test_isolated_guest_proves_network_by_later_request(story, tracker, check, guest):
    served(story)
    story.console("Cloud-init v. 22.4.2 finished at ...")
    check._question(guest, tracker)
    story.poll()
    check.look()
    assert tracker.done()


@pytest.mark.parametrize(
    ("routes", "passes"), [(ROUTES, True), (DEFAULT, True), (NO_ROUTES, False), (None, True)]
)
def test_isolated_guest_proves_network_by_routes(story, tracker, check, guest, routes, passes):
    """A guest without requests and without a shell proves nothing, and is not blamed."""
    guest.routes = routes
    served(story)
    story.console("Cloud-init v. 22.4.2 finished at ...")
    check.look()
    check.conclude()
    verdict = verdict_of(story, tracker)
    assert verdict.passed == passes
    assert passes or "no route to 169.254.169.254" in verdict.last_line()


@pytest.mark.parametrize("shell", [True, False])
def test_end_of_boot_is_detected_when_console_does_not_show_it(
    story, tracker, check, on_networks, shell
):
    on_networks.routes = ROUTES if shell else None
    story.power()
    story.metadata()
    if shell:
        on_networks.state = "starting"
        check.look()
        assert not tracker.boots.ended
        on_networks.state = "running"
    check.look()
    assert tracker.boots.ended
    check.look()
    check.look()
    assert tracker.done()


@pytest.mark.parametrize("reads", [True, False])
def test_end_of_boot_is_looked_for_in_a_guest_that_reads_no_metadata(
    story, tracker, check, on_networks, reads
):
    """dib's enable-serial-console starts two getties on ttyS0, which hide the end of the boot."""
    story.boot()
    if not reads:
        story.emit("harness", "answer", stage="metadata served", reached=None, text="no reader")
    story.console("[  OK  ] Reached target getty.target - Login Prompts.")
    for _ in range(3):
        check.look()
    assert tracker.network_answered is not reads
    assert (tracker.missing() is None) is not reads


def test_guest_that_misses_another_stage_is_not_checked(story, check, on_networks):
    on_networks.ports = {'10.0.0.5 on "private"': False}
    story.boot()
    check.conclude()
    assert not [event for event in story.events if event.kind == "network"]


def test_guest_that_only_misses_network_is_awaited(story, tracker):
    served(story)
    assert rest.is_waited_for(tracker)


@pytest.mark.parametrize(
    ("row", "device"),
    [
        ("ens4\t00A9FEA9\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0", "ens4"),
        ("ens4\tFEA9FEA9\t0200000A\t0007\t0\t0\t0\tFFFFFFFF\t0\t0\t0", "ens4"),
        ("ens4\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0", ""),
        # A device that is down, a route that rejects (RTF_UP, RTF_REJECT), the loopback.
        ("ens4\t00000000\t00000000\t0000\t0\t0\t0\t00000000\t0\t0\t0", ""),
        ("*\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0", ""),
        ("lo\t00000000\t00000000\t0001\t0\t0\t0\t00000000\t0\t0\t0", ""),
        ("nonsense", ""),
        ("ens4\tx\ty\tz", ""),
    ],
)
def test_route_is_read_from_kernel_table(row, device):
    assert route_to("169.254.169.254", f"{NO_ROUTES}{row}\n") == device


@pytest.mark.parametrize("strict", [False, True])
def test_unfinished_user_data_is_noticed(story, tracker, check, on_networks, strict):
    """The guest was silent for longer than the patience, and the template wants no signal of it."""
    served(story)
    story.console("Cloud-init v. 22.4.2 running 'modules:final' at ...", "debian login: ")
    check.conclude()
    verdict = verdict_of(story, tracker, strict=strict)
    assert verdict.passed
    (late,) = verdict.noticed
    assert late.kind == "boot-unfinished"
    assert late.sentence.startswith("the user data had not ended")
    story.console("Cloud-init v. 22.4.2 finished at ...")
    assert verdict_of(story, tracker).noticed == ()
