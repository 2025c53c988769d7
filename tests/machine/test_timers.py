"""Timer slack of QEMU, on a stub process; test_machine.py has QEMU."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotplate.machine.timers import EXACT, SLACK, TimerSlack

# Linux allows it to ordinary users when QEMU is in a user namespace of theirs.
pytestmark = pytest.mark.root

BEGINNING = "[    0.000000] Linux version 6.12.48+deb13-cloud-amd64"
LATER = "[    2.584767] tsc: Refined TSC clocksource calibration: 2596.148 MHz"
#: Nanoseconds: Linux's default, from timer_slack of prctl(2).
DEFAULT = 50_000


def slack_of(process: subprocess.Popen[bytes]) -> int:
    return int(Path(f"/proc/{process.pid}/timerslack_ns").read_text())


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as sleeping:
        yield sleeping
        sleeping.kill()


@pytest.fixture
def timers(process: subprocess.Popen[bytes]) -> Iterator[TimerSlack]:
    made = TimerSlack(process.pid)
    yield made
    made.close()


@pytest.mark.parametrize(
    "line",
    [
        "[    0.256218] APIC: Switch to symmetric I/O mode setup",
        "[    1.999999] NET: Registered PF_INET protocol family",
        "[  OK  ] Reached target basic.target - Basic System.",
        "Begin: Running /scripts/init-premount ... done.",
        # A kernel whose first lines were missed: those of the next could be missed too.
        LATER,
        "[12345.678] not a kernel's",
        "",
    ],
)
def test_timers_stay_exact_until_the_kernel_has_checked_them(
    process: subprocess.Popen[bytes], timers: TimerSlack, line: str
) -> None:
    timers.read(line)
    assert slack_of(process) == DEFAULT


def test_timers_may_be_late_until_another_kernel_begins(
    process: subprocess.Popen[bytes], timers: TimerSlack
) -> None:
    timers.read(BEGINNING)
    timers.read(LATER)
    assert slack_of(process) == SLACK
    # Started by kexec, without QEMU's knowledge.
    timers.read(BEGINNING)
    assert slack_of(process) == EXACT
    timers.read("[12345.678901] random: crng init done")
    assert slack_of(process) == SLACK


def test_last_line_before_a_reset_may_arrive_after_it(
    process: subprocess.Popen[bytes], timers: TimerSlack
) -> None:
    timers.read(BEGINNING)
    timers.read(LATER)
    timers.reset()
    timers.read("[   35.101234] reboot: Restarting system")
    assert slack_of(process) == EXACT


def test_closed_slack_writes_nothing(process: subprocess.Popen[bytes], timers: TimerSlack) -> None:
    timers.close()
    timers.restored()
    assert slack_of(process) == DEFAULT


def test_missing_process_is_no_error(process: subprocess.Popen[bytes]) -> None:
    timers = TimerSlack(process.pid)
    process.kill()
    process.wait()
    timers.restored()
    timers.close()
    TimerSlack(process.pid).restored()
