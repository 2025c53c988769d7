"""One check in a guest: its result, its output, its time limit and its reboots."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from hotplate.checks import runner as runner_module
from hotplate.checks.check import CheckStatus, DataFile
from hotplate.checks.metadata import CheckMetadata
from hotplate.checks.runner import BLOCK_BYTES, CUT, FIRST_BYTES, LAST_BYTES
from hotplate.guest.base import GuestGoneError

from .conftest import check_of

pytestmark = [pytest.mark.root]

# The example of autopkgtest's README.package-tests, "Reboot during a test".
REBOOTS = """\
case "${AUTOPKGTEST_REBOOT_MARK:-}" in
  "") echo "test beginning"; /tmp/autopkgtest-reboot mark1 ;;
  mark1) echo "test in mark1"; /tmp/autopkgtest-reboot mark2 ;;
  mark2) echo "test in mark2" ;;
  *) echo "unexpected mark"; exit 1 ;;
esac"""


@pytest.fixture
def short(monkeypatch):
    """Shorten a check's limit, which is in minutes, to two seconds."""
    monkeypatch.setattr(runner_module.host_speed, "factor", lambda: 2 / 60)
    return {"metadata": CheckMetadata(minutes=1)}


def test_check_passes_with_status_0_and_its_output(run, guest):
    result = run("echo out; echo err >&2; id -u; pwd; umask")
    assert (result.status, result.reason) == (CheckStatus.PASSED, "")
    assert result.output == "out\nerr\n0\n/\n0022"
    assert not [*(guest.root / "var").iterdir()]
    assert not [*(guest.root / "tmp").iterdir()]


def test_failed_check_names_its_status(run):
    result = run("echo no luck; exit 3")
    assert (result.status, result.reason) == (CheckStatus.FAILED, "it ended with status 3")
    assert result.output == "no luck"


def test_killed_check_names_its_signal(run):
    result = run("kill -SEGV $$")
    assert (result.status, result.reason) == (CheckStatus.FAILED, "it was ended by the signal 11")


def test_status_77_is_a_failure_unless_tagged_skippable(run):
    assert run("exit 77").status is CheckStatus.FAILED
    skipped = run('# kola: {"tags": "skippable"}', "exit 77")
    assert (skipped.status, skipped.reason) == (CheckStatus.SKIPPED, "it ended with status 77")


def test_program_that_cannot_be_executed_fails(run, guest):
    check = replace(check_of(), program=b"#!/no/such/shell\n")
    result = runner_module.CheckRunner(guest).run(check)
    assert result.status is CheckStatus.FAILED
    assert "No such file" in result.output


def test_environment_is_that_of_kola_and_autopkgtest(run):
    files = (DataFile("lib/common.sh", b"echo common\n"), DataFile("tool", b"#!/bin/sh\n", 0o755))
    result = run(
        '. "$KOLA_EXT_DATA/lib/common.sh" && "$KOLA_EXT_DATA/tool" && echo "$KOLA_TEST '
        '$KOLA_TEST_EXE"; touch "$AUTOPKGTEST_TMP/x"; env | grep -c REBOOT_MARK',
        name="it's here",
        data=files,
    )
    assert result.output == "common\nit's here it's here\n0"


def test_name_of_a_check_may_be_no_utf8(run):
    result = run('basename "$0" | od -An -tx1', name="\udcff")
    assert (result.status, result.output.strip()) == (CheckStatus.PASSED, "ff 0a"), result


def test_hanging_check_is_killed_with_all_that_it_started(run, short, guest):
    began = time.monotonic()
    result = run("echo begin", "sleep 1234 &", "sleep 1234", **short)
    assert time.monotonic() - began < 600
    assert (result.status, result.reason) == (
        CheckStatus.FAILED,
        "it did not end within 2 s, and was killed",
    )
    assert result.output == "begin"
    assert "sleep 1234" not in guest.run("ps -eo args").text


def test_process_left_running_does_not_hold_up_the_next_check(run, guest):
    began = time.monotonic()
    assert run("sleep 1234 &", "echo begin").output == "begin"
    assert time.monotonic() - began < 600
    assert "sleep 1234" not in guest.run("ps -eo args").text


def until_exists(path):
    """Return a line of shell that waits for a file, such as that of a process with a session."""
    return f"until [ -e {path} ]; do sleep 0.05; done"


def test_output_held_by_a_daemon_is_said_to_be_incomplete(run, guest, monkeypatch):
    monkeypatch.setattr(runner_module, "OUTPUT_SECONDS", 1.0)
    result = run(
        "echo begin; setsid sh -c 'echo > /run/apart; exec sleep 1234' &",
        f"{until_exists('/run/apart')}; exit 4",
    )
    assert result.reason == "it ended with status 4"
    assert "a process that it left running holds it" in result.output


def test_gigabyte_of_output_is_cut_and_fills_no_disk(run, guest):
    result = run("echo first", "head -c 1000000000 /dev/zero | tr '\\0' x", "echo last; exit 1")
    assert result.reason == "it ended with status 1"
    assert len(result.output) <= FIRST_BYTES + BLOCK_BYTES + len(CUT) + LAST_BYTES
    assert result.output.startswith("first\nxxx")
    assert result.output.endswith("xxxlast")
    assert CUT in result.output


def test_output_of_exactly_the_limit_is_whole(run):
    count = FIRST_BYTES + LAST_BYTES
    assert run(f"head -c {count} /dev/zero | tr '\\0' x").output == "x" * count


def test_check_reboots_and_goes_on_with_its_mark(run, guest):
    result = run(REBOOTS)
    assert (result.status, result.reason) == (CheckStatus.PASSED, "")
    assert guest.boots == 3
    said = [line for line in result.output.splitlines() if line]
    assert said == [
        "test beginning",
        "[the machine was rebooted with the mark mark1]",
        "test in mark1",
        "[the machine was rebooted with the mark mark2]",
        "test in mark2",
    ]


@pytest.mark.parametrize("end", ["exit 0", "sleep 60", "kill -TERM $$"])
def test_check_reboots_by_itself_after_prepare(run, guest, end):
    """Fedora CoreOS's tests leave the reboot to a service, and end."""
    result = run(
        '[ -z "$AUTOPKGTEST_REBOOT_MARK" ] || { echo "after $AUTOPKGTEST_REBOOT_MARK"; exit 0; }',
        "/tmp/autopkgtest-reboot-prepare two || exit 1",
        "setsid sh -c 'echo > /run/apart; sleep 1; systemctl reboot' >/dev/null 2>&1 &",
        until_exists("/run/apart"),
        end,
    )
    assert result.status is CheckStatus.PASSED, result
    assert guest.boots == 2
    assert result.output.endswith("after two")


def test_failure_after_prepare_needs_no_reboot(run, guest):
    result = run("/tmp/autopkgtest-reboot-prepare two", "echo no crash; exit 5")
    assert (result.reason, guest.boots) == ("it ended with status 5", 1)


def test_reboot_without_mark_fails_the_check_and_no_other(run, guest):
    result = run("systemctl reboot")
    assert result.status is CheckStatus.FAILED
    assert "rebooted while it ran, and not by /tmp/autopkgtest-reboot" in result.reason
    assert run("echo next").output == "next"


@pytest.fixture
def lost_at_start(guest, monkeypatch):
    """Lose the answer to the start of a check, with the command or after it has run."""

    def lose(*, ran: bool) -> None:
        run = guest.run

        def answer(command, **limit):
            if "setsid sh started" not in command:
                return run(command, **limit)
            if ran:
                run(f"{command} while [ ! -e /run/reboot ]; do sleep 0.01; done", **limit)
            raise GuestGoneError("the guest has gone")

        monkeypatch.setattr(guest, "run", answer)

    return lose


def test_reboot_before_the_answer_to_the_start_is_named(run, lost_at_start):
    lost_at_start(ran=True)
    assert "the machine rebooted while it ran" in run("systemctl reboot").reason


def test_check_that_was_not_started_fails_at_once(run, lost_at_start):
    lost_at_start(ran=False)
    reason = run("true").reason
    assert reason == "the connection to the guest was lost before its start"


def test_switched_off_machine_fails_the_check_and_skips_the_others(run, guest):
    result = run("systemctl poweroff")
    assert result.reason == "the machine was switched off while it ran"
    assert run("true").status is CheckStatus.SKIPPED
    assert run("true").reason == "the machine is off"


def test_link_of_another_user_in_tmp_is_not_followed(run, guest):
    victim = guest.root / "victim"
    victim.write_text("kept")
    (guest.root / "tmp" / "autopkgtest-reboot").symlink_to(victim)
    assert run("true").status is CheckStatus.PASSED
    assert victim.read_text() == "kept"


def test_check_for_another_architecture_is_skipped(run):
    result = run('# kola: {"architectures": "s390x ppc64le"}', "exit 1")
    assert result.status is CheckStatus.SKIPPED
    assert result.reason.startswith('architectures are "s390x ppc64le", and the guest is "')
