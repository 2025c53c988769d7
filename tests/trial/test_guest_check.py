"""The guest of an image without an agent is asked after its boot for its stages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from paramiko import ECDSAKey

from hotplate.errors import HostError, MachineLostError, SubjectError
from hotplate.events.kinds import NetworkAnswer
from hotplate.guest.base import CommandResult
from hotplate.machine.machine import Capability
from hotplate.stacks import builtin
from hotplate.trial import guest_check
from hotplate.trial.guest_check import GuestCheck, PlainImage
from hotplate.trial.guests import Guests
from hotplate.verdict.stages import ASKED, BOOT, Stage
from hotplate.verdict.tracker import StageTracker
from hotplate.verdict.verdict import StackResult, Subject, judge

IMAGE = PlainImage("cloud-init", "debian", has_ssh=True, root_bytes=2 << 30, disk_bytes=2 << 30)
#: The files of 22.4.2, on one line each.
STAGE = '{"errors": [], "finished": 1796035333.6, "start": 1796035333.2}'
FILES = f"""\
status={{"v1": {{"datasource": "DataSourceOpenStackLocal [net,ver=2]", "init": {STAGE},\
 "modules-final": {STAGE}, "modules-init": {{"errors": [], "finished": null, "start": null}},\
 "stage": null}}}}
result={{"v1": {{"datasource": "DataSourceOpenStackLocal [net,ver=2]", "errors": []}}}}
"""
#: ``stat -f -c '%b %S' /`` of 4 GiB less ext4's own, and ``cloud-init status --long`` of 22.4.2.
GOOD = """\
name=web
root=1010000 4096
ran=yes
cloud-init: status: done
cloud-init: boot_status_code: enabled-by-generator
cloud-init: detail:
cloud-init: DataSourceOpenStackLocal [net,ver=2]
"""


class Guest:
    """A stub of a server: a root shell and an ssh server that answer or not."""

    def __init__(self, story: Any) -> None:
        self.spec = SimpleNamespace(id=story.tracker.server, name="web")
        self.text = GOOD
        self.lets_in = True
        self.refuses: Exception | None = None
        self.users: list[str] = []
        self.commands: list[str] = []
        self.login: Any = None
        self.machine = SimpleNamespace(
            running=True, capabilities=frozenset({Capability.KERNEL}), wiring=None
        )

    def shell(self, *, seconds: float) -> Any:
        if not self.lets_in:
            raise MachineLostError("nobody is let in")
        return self

    def run(self, command: str, *, timeout: float = 1.0) -> CommandResult:
        self.commands.append(command)
        return CommandResult(command, 0, self.text.encode(), b"")


@pytest.fixture
def tracker(story):
    story.deployed = False
    return StageTracker(story.events, story.tracker.server, checked=True, asked=True)


@pytest.fixture
def guest(story, monkeypatch):
    made = Guest(story)

    class PlayedSsh:
        def __init__(self, connect: Any, *, keys: Any, user: str) -> None:
            made.users.append(user)
            self.user = user

        def attach(self, deadline: Any) -> None:
            if made.refuses is not None:
                raise made.refuses

        def run(self, command: str, *, timeout: float = 1.0) -> CommandResult:
            return made.run(command)

        def close(self) -> None: ...

    monkeypatch.setattr(guest_check, "Ssh", PlayedSsh)
    return made


@pytest.fixture
def check(story, tracker, guest):
    """Return a function that boots the guest, asks it, and returns the verdict."""

    def ask(
        image: PlainImage = IMAGE,
        *,
        metadata: bool = True,
        ended: bool = True,
        seconds: float = 1.0,
    ) -> Any:
        guests = Guests(story.events, lambda _: guest, {tracker.server: tracker})
        asks = GuestCheck(guests, image=image, key=ECDSAKey.generate(), seconds=seconds)
        asks.look()
        story.boot()
        if metadata:
            story.metadata()
        else:
            story.console("ci-info: | ens4 | True | 10.0.0.5 | . | global |")
        if ended:
            story.console("Debian GNU/Linux 12 web ttyS0\n\nweb login: ")
            story.console("Cloud-init v. 22.4.2 finished at Sat, 28 Nov 2026")
        story.events.add(NetworkAnswer(True, "it answered"), server=tracker.server)
        asks.look()
        if not ended:
            assert not tracker.answered
            asks.conclude()
        assert tracker.done()
        ended_so = StackResult("CREATE_COMPLETE")
        return judge(Subject("web.qcow2"), story.events, [tracker], ended_so, now=1.0)

    return ask


def stages(verdict: Any) -> dict[Stage, Any]:
    return {each.stage: each for each in verdict.stages}


def test_guest_passes_with_all_its_stages(check, guest):
    verdict = check()
    assert verdict.passed, verdict.reasons
    assert [each.stage for each in verdict.stages] == [*BOOT, *ASKED]
    assert all(each.seconds is not None and not each.implied for each in verdict.stages[3:])
    assert guest.users == ["debian"]


@pytest.mark.parametrize(
    ("change", "stage", "fault", "says"),
    [
        (("ran=yes\n", ""), "user data ran", "user-data-not-run", "left no /run/hotplate"),
        (
            # cloudinit/cmd/status.py until 23.3 has the errors in the lines after "detail:".
            (
                "status: done\ncloud-init: boot_status_code: enabled-by-generator\n"
                "cloud-init: detail:\ncloud-init: DataSourceOpenStackLocal [net,ver=2]",
                "status: error\ncloud-init: boot_status_code: enabled-by-generator\n"
                "cloud-init: detail:\ncloud-init: ('locale', ProcessExecutionError())",
            ),
            "cloud-init done",
            "cloud-init-failed",
            "says \"status: error; detail:; ('locale', ProcessExecutionError())\"",
        ),
        (("name=web", "name=debian"), "host name set", "host-name-not-set", 'is "debian"'),
        (("root=1010000", "root=510000"), "root file system grown", "root-not-grown", "1.9 GiB"),
    ],
    ids=["user-data", "cloud-init", "host-name", "root"],
)
def test_stage_that_the_guest_has_not_reached_fails(check, guest, change, stage, fault, says):
    guest.text = GOOD.replace(*change)
    verdict = check()
    assert not verdict.passed
    assert (verdict.diagnosis.fault, str(verdict.diagnosis.stage)) == (fault, stage)
    assert says in verdict.last_line()
    assert says in stages(verdict)[Stage(stage)].absence
    # The others do not depend on it.
    assert [each.stage for each in verdict.stages if each.seconds is None] == [stage]


@pytest.mark.parametrize(
    ("change", "is_asked"),
    [
        (("", ""), False),
        # cloud-init 23.4 and later has it for each stage.
        (('"errors": [], "fin', '"errors": [], "recoverable_errors": {}, "fin'), False),
        (('"errors": [], "fin', '"errors": [], "recoverable_errors": {"WARNING": []}, "fin'), True),
        (('"errors": [], "fin', '"errors": ["no"], "fin'), True),
        (('"errors": []}}', '"errors": ["no"]}}'), True),
        (("1796035333.6", "null"), True),
        # Its first stage was killed, and the others went on.
        (('"init": {"errors": [], "finished": 1796035333.6', '"init": {"finished": null'), True),
        (('{"v1"', "[" * 100_000), True),
        (("status=", "other="), True),
        (("null, ", ""), True),
    ],
    ids=range(10),
)
def test_cloud_init_is_loaded_only_where_its_files_show_no_good_end(check, guest, change, is_asked):
    guest.text = GOOD + FILES.replace(*change)
    assert check().passed
    assert any("--long" in each for each in guest.commands) == is_asked


def test_degraded_cloud_init_is_done_and_says_so(check, guest):
    """cloud-init 23.4 and later; its exit status is 2."""
    guest.text = GOOD.replace(
        "status: done", "status: done\ncloud-init: extended_status: degraded done"
    )
    verdict = check()
    assert verdict.passed
    assert "degraded done" in stages(verdict)[Stage.CLOUD_INIT_DONE].evidence


def test_unit_that_does_not_end_is_no_fault_of_cloud_init(check, monkeypatch):
    monkeypatch.setattr(guest_check, "wait_for_boot", lambda *_, seconds: "its boot has not ended")
    assert check().passed


def test_boot_that_has_been_waited_for_is_not_waited_for_again(check, monkeypatch):
    waits = []
    monkeypatch.setattr(guest_check, "wait_for_boot", lambda *_, seconds: waits.append(seconds))
    assert check(seconds=180.0, ended=False).passed
    assert waits == [guest_check.SHELL_SECONDS]


def test_unit_that_user_data_wait_for_is_named(check, guest, story):
    """cloud-final.service runs after multi-user.target, which waits for all of its units."""
    guest.text = GOOD.replace("ran=yes\n", "").replace("status: done", "status: running")
    jobs = "12 site.service start running\n14 cloud-final.service start waiting"
    story.probe("health", f"=== jobs\n{jobs}")
    verdict = check(ended=False)
    assert (verdict.diagnosis.fault, verdict.diagnosis.stage) == ("boot-waits", Stage.USER_DATA_RAN)
    assert 'waits for the unit "site.service"' in verdict.last_line()


HOSTILE = ("9" * 5000 + " 4096", "\u00b2 4096", "1 " + "9" * 5000, "\0 1", "-1 4096", "")


@pytest.mark.parametrize("root", HOSTILE, ids=range(len(HOSTILE)))
def test_senseless_size_of_the_root_is_not_judged(check, guest, root):
    guest.text = GOOD.replace("root=1010000 4096", f"root={root}")
    verdict = check()
    assert verdict.passed
    assert "does not say how large" in stages(verdict)[Stage.ROOT_GROWN].absent


def test_long_answers_of_a_guest_are_cut(check, guest):
    guest.text = GOOD.replace("name=web", "name=" + "x" * 2_000_000).replace(
        "status: done", "status: error\ncloud-init: - " + "y" * 2_000_000
    )
    verdict = check()
    assert max(len(each.absence) for each in verdict.stages) < 700


def test_guest_that_stops_to_answer_has_not_reached_its_stages(check, guest, monkeypatch):
    def silent(command, *, timeout=1.0):
        raise MachineLostError("the guest has gone")

    monkeypatch.setattr(guest, "run", silent)
    verdict = check()
    assert not verdict.passed
    assert "gave no answer: the guest has gone" in stages(verdict)[Stage.HOST_NAME_SET].absence


def test_refused_key_fails_and_root_shell_answers_the_rest(check, guest):
    guest.refuses = SubjectError('the guest\'s ssh server does not let "debian" in')
    verdict = check()
    assert verdict.diagnosis.fault == "key-not-accepted"
    assert 'does not let "debian" in' in verdict.last_line()
    assert stages(verdict)[Stage.HOST_NAME_SET].seconds is not None


def test_guest_without_root_shell_is_asked_by_ssh(check, guest):
    guest.lets_in = False
    assert guest.login is None
    assert check().passed
    # The user's checks and the logs take the same way.
    assert guest.login(1.0).user == "debian"


def test_guest_that_lets_nobody_in_fails_at_its_key_only(check, guest):
    guest.lets_in = False
    guest.refuses = SubjectError("no key is good")
    verdict = check()
    assert verdict.diagnosis.fault == "key-not-accepted"
    assert stages(verdict)[Stage.HOST_NAME_SET].absence == "not judged: nothing lets the harness in"


def test_port_that_no_wiring_reaches_is_not_judged(check, guest):
    guest.refuses = HostError("the guest's ports are out of reach")
    verdict = check()
    assert verdict.passed
    assert stages(verdict)[Stage.KEY_ACCEPTED].absent == "the guest's ports are out of reach"


def test_image_that_reads_no_metadata_is_judged_by_boot_and_network(check, guest):
    """A first-boot script of the image's own is not known before the boot, and counts by it."""
    guest.lets_in = False
    image = PlainImage("", "", has_ssh=True, root_bytes=2 << 30, disk_bytes=2 << 30)
    verdict = check(image, metadata=False)
    assert verdict.passed, verdict.reasons
    # No ssh server of it knows Nova's key, which is in the metadata.
    assert not guest.users
    judged = [each.stage for each in verdict.stages if each.due]
    assert judged == [Stage.BOOTED, Stage.NETWORK_UP]
    assert stages(verdict)[Stage.METADATA_SERVED].absence == f"not judged: {guest_check.NO_READER}"


def test_own_script_that_read_the_metadata_is_judged(check, guest):
    guest.text = GOOD.partition("cloud-init:")[0].replace("ran=yes\n", "")
    image = PlainImage("", "", has_ssh=True, root_bytes=2 << 30, disk_bytes=2 << 30)
    verdict = check(image)
    assert stages(verdict)[Stage.METADATA_SERVED].seconds is not None
    assert stages(verdict)[Stage.CLOUD_INIT_DONE].absent == "the image has no cloud-init"
    assert verdict.diagnosis.fault == "user-data-not-run"
    assert guest.users == ["root"]


def test_guest_whose_boot_shows_no_end_is_asked_at_the_end_of_the_run(check):
    assert check(ended=False).passed


def test_container_has_no_disk_that_could_grow(check, guest):
    guest.machine.capabilities = frozenset()
    verdict = check()
    assert verdict.passed
    assert stages(verdict)[Stage.ROOT_GROWN].absent == "a container has no disk of its own"


def test_template_gets_key_pair_disk_and_ignition():
    template = builtin.plain()
    made = IMAGE.fitted(template, "ssh-rsa AAAA").template["resources"]
    assert made["key"]["properties"]["public_key"] == "ssh-rsa AAAA"
    server = made["server"]["properties"]
    assert server["metadata"] == {"hotplate_disk": "4"}
    assert server["user_data"].startswith("#!/bin/sh\n")
    image = PlainImage("Ignition", "core", has_ssh=True, root_bytes=1, disk_bytes=1)
    server = image.fitted(template, "ssh-rsa AAAA").template["resources"]["server"]["properties"]
    assert server["user_data"].startswith('{"ignition": {"version": "3.0.0"}')
