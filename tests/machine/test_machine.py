"""Machines that really boot: the tiny guest under TCG, a few seconds each."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_guest
from small_disk import small_disk
from tiny_machines import BOOT_SECONDS, Made, ask, attached

from hotplate.errors import HostError, MachineLostError
from hotplate.events import classify
from hotplate.guest.shell import Shell
from hotplate.machine import timers, wiring
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

pytestmark = [pytest.mark.boots, pytest.mark.network, pytest.mark.tool("qemu-system-x86_64")]

Make = Callable[..., Made]


def test_power_cut_keeps_synced_data(make: Make, tmp_path: Path) -> None:
    disk = tmp_path / "disk.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", disk, "64M"], check=True)
    made = make(disk=disk)
    shell = attached(made.machine)
    shell.run("echo kept >/x; dd if=/x of=/dev/vda bs=512 seek=90000 conv=fsync,notrunc").check()
    made.machine.kill()
    assert not made.machine.running
    assert made.machine.wait(Deadline(60, "the end")).reason == "power-cut"
    with pytest.raises(MachineLostError, match="is off"):
        made.machine.pause()
    with pytest.raises(MachineLostError, match="is off"):
        shell.run("true")
    subprocess.run(["qemu-img", "check", "-q", disk], check=True)
    made.machine.start()
    again = attached(made.machine)
    assert again.run("dd if=/dev/vda bs=512 skip=90000 count=1").stdout[:5] == b"kept\n"
    # The same listeners serve the machine after it was switched on again.
    assert ask(again, "169.254.169.254", 80) == "tiny 80"
    kinds = [event.kind for event in made.events if event.source == "machine"]
    assert kinds == ["power-on", "exit", "power-on"]


def timer_slack(made: Made) -> int:
    return int(Path(f"/proc/{made.machine.pid}/timerslack_ns").read_text())


def assert_timers_become_late(made: Made, shell: Shell) -> None:
    """Make the kernel write a line after it has checked its timers, also where it boots faster."""
    wait = 'until read up _ </proc/uptime; [ "${up%.*}" -ge 3 ]; do sleep 0.1; done'
    shell.run(f"{wait}; echo late >/dev/kmsg").check()
    if os.geteuid() == 0:
        late = Deadline(60, "late timers")
        retry(lambda _: timer_slack(made) == timers.SLACK, late)


def test_reboot_and_panic_are_events_and_timers_may_be_late_between_them(make: Make) -> None:
    # Without "quiet" the kernel writes from its beginning, so that its checks can be followed.
    made = make(append="console=ttyS0 panic=0 cryptomgr.notests")
    root = os.geteuid() == 0
    shell = attached(made.machine)
    before = shell.run("cat /proc/sys/kernel/random/boot_id").text
    assert_timers_become_late(made, shell)
    mark = len(made.events)
    with pytest.raises(MachineLostError, match="restarted"):
        shell.run("reboot -f; sleep 30")
    shell.attach(Deadline(BOOT_SECONDS, "the shell after the reboot"))
    assert shell.run("cat /proc/sys/kernel/random/boot_id").text != before
    reset = made.events.wait(lambda event: event.kind == "reset", seconds=60, since=mark)
    assert reset is not None and reset.detail["by_guest"]
    assert_timers_become_late(made, shell)
    mark = len(made.events)
    made.machine.qmp.execute("system_reset")
    assert made.events.wait(lambda event: event.kind == "reset", seconds=60, since=mark)
    assert not root or timer_slack(made) == timers.EXACT
    shell.attach(Deadline(BOOT_SECONDS, "the shell after the reset"))
    shell._channel.send(b"echo c >/proc/sysrq-trigger\n", Deadline(60, "the shell"))
    made.machine.console.wait_for("Kernel panic - not syncing", Deadline(60, "the panic"))
    assert made.events.wait(lambda event: event.kind == "panic", seconds=60)


def test_machine_killed_by_another_process_is_lost(make: Make) -> None:
    made = make()
    assert made.machine.pid is not None
    os.kill(made.machine.pid, signal.SIGKILL)
    end = made.machine.wait(Deadline(60, "the end"))
    assert (end.status, end.reason) == (-9, "lost")


def test_console_is_recorded_and_typed_on_until_the_guest_shuts_down(make: Make) -> None:
    made = make()
    console = made.machine.console
    console.wait_for(r"^/ # $", Deadline(BOOT_SECONDS, "the prompt"))
    mark = console.position
    console.write("echo 'umlaut: \\303\\244' | sed s/x/y/; printf '\\033[31mred\\033[0m\\n'\n")
    console.wait_for(r"^red$", Deadline(60, "the answer"), since=mark)
    # The prompt behind the answer.
    console.wait_for(r"^/ # $", Deadline(60, "the prompt"), since=console.position)
    assert made.events.wait(
        lambda event: event.kind == "line" and tiny_guest.READY in event.detail["text"], seconds=60
    )
    with pytest.raises(DeadlineExceeded, match='the last line on the console was "/ # "'):
        console.wait_for("never said", Deadline(0.3, "what is never said"))
    assert tiny_guest.READY.encode() in console.path.read_bytes()
    console.write("poweroff -f\n")
    end = made.machine.wait(Deadline(60, "the end"))
    assert (end.status, end.reason) == (0, "guest-shutdown")
    last = [event for event in made.events if event.kind == "exit"][-1]
    assert last.detail == {"status": 0, "reason": "guest-shutdown", "message": ""}
    assert last.server == "tiny"
    assert tiny_guest.READY in console.text()
    with pytest.raises(BrokenPipeError):
        console.write("x")


def test_link_is_cut_and_restored(make: Make) -> None:
    made = make()
    shell = attached(made.machine)
    made.machine.set_link(up=False)
    assert ask(shell, "169.254.169.254", 80) == ""
    made.machine.set_link(up=True)

    def answered(_last_try: bool) -> str:
        # The guest's kernel gets an interrupt for the link, a moment later.
        return ask(shell, "169.254.169.254", 80, seconds=8)

    assert retry(answered, Deadline(60, "an answer over the mended link")) == "tiny 80"


def config_interrupts(shell: Shell) -> list[str]:
    """Return the configuration interrupts of each virtio device: lines of /proc/interrupts."""
    lines = shell.run("grep virtio.*-config /proc/interrupts").text.splitlines()
    assert lines
    return [" ".join(line.split()) for line in lines]


def test_state_is_saved_and_continued(make: Make, tmp_path: Path) -> None:
    made = make()
    shell = attached(made.machine)
    shell.run("echo before >/tmp/mark").check()
    boot = shell.run("cat /proc/sys/kernel/random/boot_id").text
    interrupts = config_interrupts(shell)
    state = tmp_path / "state"
    made.machine.save_state(state)
    assert state.stat().st_mode & 0o777 == 0o600
    made.machine.kill()
    began = time.monotonic()
    made.machine.start(incoming=state)
    again = attached(made.machine)
    print(f"restored in {time.monotonic() - began:.2f} s from {state.stat().st_size >> 20} MiB")
    assert again.run("cat /proc/sys/kernel/random/boot_id").text == boot
    assert again.run("cat /tmp/mark").text == "before"
    if os.geteuid() == 0:
        assert timer_slack(made) == timers.SLACK
    now = 2_000_000_000
    again.set_time(now)
    assert now <= int(again.run("date +%s").text) <= now + 20
    again.renew("another")
    with pytest.raises(MachineLostError, match="not the one that was started"):
        attached(made.machine)
    assert ask(again, "169.254.169.254", 80) == "tiny 80"
    # The guest was not asked to announce itself.
    assert config_interrupts(again) == interrupts
    # A clone runs beside it from the same state.
    clone = make(name="clone", start=False)
    clone.machine.start(incoming=state)
    other = attached(clone.machine)
    assert other.run("cat /tmp/mark").text == "before"
    # Two machines at once are isolated.
    made.answerer.taken.clear()
    answers = [ask(shell, "169.254.169.254", 8000) for shell in (again, other)]
    assert answers == ["tiny 8000", "clone 8000"]
    assert (made.answerer.taken, clone.answerer.taken) == ([8000], [8000])
    # Its devices can also be reset: with announce-rounds=0 QEMU ended at that point.
    with pytest.raises(MachineLostError, match="restarted"):
        other.run("reboot -f; sleep 30")
    other.attach(Deadline(BOOT_SECONDS, "the shell after the reboot"))
    assert other.run("cat /proc/sys/kernel/random/boot_id").text != boot


def test_unusable_state_is_reported(make: Make, tmp_path: Path) -> None:
    state = tmp_path / "state"
    made = make()
    made.machine.save_state(state)
    made.machine.kill()
    whole = state.read_bytes()
    for name, content, options in (
        ("truncated", whole[:100_000], {}),
        ("foreign", b"no such thing" * 1000, {}),
        ("missing", b"", {}),
        ("of other memory", whole, {"memory_mib": 320}),
    ):
        state.write_bytes(content)
        if not content:
            state.unlink()
        other = make(name=name, start=False, **options)
        with pytest.raises(MachineLostError, match=f'"{state}"'):
            other.machine.start(incoming=state)
        assert not other.machine.running


@pytest.mark.root
def test_full_disk_of_the_host_is_reported_and_the_guest_goes_on(
    make: Make, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "small", "1M") as small:
        made = make()
        shell = attached(made.machine)
        with pytest.raises(HostError, match="could not be written"):
            made.machine.save_state(small / "state")
        assert list(small.iterdir()) == []
        made.machine.resume()
        assert shell.run("echo on").text == "on"


@pytest.mark.root
def test_guest_without_space_to_write_is_reported(make: Make, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "2M") as small:
        disk = small / "disk.qcow2"
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", disk, "64M"], check=True)
        made = make(disk=disk, disk_format="qcow2")
        shell = attached(made.machine)
        since = len(made.events)
        shell.run("dd if=/dev/urandom of=/dev/vda bs=64k count=200 >/dev/null 2>&1 &").check()
        stop = made.events.wait(classify.is_stop, seconds=60, since=since)
        assert stop is not None
        assert stop.detail["full"] is True
        made.machine.kill()


HARNESS = """
import sys, time, uuid
from pathlib import Path
from hotplate.events.log import EventLog
from hotplate.machine import accelerator, wiring
from hotplate.machine.config import MachineConfig
from hotplate.machine.qemu import QemuMachine
with wiring.choose([80], wanted=sys.argv[4]) as link:
    config = MachineConfig(name="tiny", uuid=str(uuid.uuid4()), memory_mib=192,
        kernel=Path(sys.argv[1]), initrd=Path(sys.argv[2]), append="console=ttyS0")
    machine = QemuMachine(config, wiring=link, accelerator=accelerator.emulation("test"),
        directory=Path(sys.argv[3]), events=EventLog())
    machine.start()
    print(machine.pid, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("wanted", wiring.WIRINGS)
def test_sigkill_of_the_harness_leaves_no_qemu(
    tiny: tiny_guest.TinyGuest, tmp_path: Path, wanted: str
) -> None:
    for moment in (0.0, 0.7):
        arguments = [tiny.kernel, tiny.initrd, tmp_path, wanted]
        with subprocess.Popen(
            [sys.executable, "-c", HARNESS, *arguments], stdout=subprocess.PIPE, text=True
        ) as harness:
            assert harness.stdout is not None
            qemu = os.pidfd_open(int(harness.stdout.readline()))
            poller = select.poll()
            poller.register(qemu, select.POLLIN)
            assert not poller.poll(moment * 1000)
            harness.kill()
            assert poller.poll(60_000), "QEMU outlived the harness"
            os.close(qemu)
