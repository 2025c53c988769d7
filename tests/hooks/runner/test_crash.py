"""The runner is killed: no result is lost, no hook runs twice, every deployment is signalled."""

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import programs
import pytest
from programs import alive

from .conftest import PYTHON, limits

#: At new moments in each run; the tests below cut before each write.
ROUNDS = 20
MAX_ROUNDS = 400

HOOK = """#!/bin/sh
cat >/dev/null
echo run >>"$COUNT_DIR/d-1"
echo $$ >"$COUNT_DIR/pid"
sleep 0.0%d
echo end >>"$COUNT_DIR/end"
echo '{"deploy_stdout":"out","deploy_stderr":"","deploy_status_code":0}'
"""


def kill(process) -> None:
    """Send SIGKILL to the runner's process group, and wait for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)


def kill_hook(guest) -> None:
    """Send SIGKILL to the hook's group too, like a power cut; wait until it is gone."""
    note = guest.state / "d-1.pid"
    text = note.read_text() if note.exists() else ""
    if not text:
        return
    pid = int(text.split()[0])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    programs.wait_until(lambda: not alive(pid))


def settle(guest) -> None:
    """Run passes until one reports that no work is left."""
    for _ in range(5):
        if guest.run().status == 0:
            return
    raise AssertionError("it never settled")


@pytest.mark.defect("H1")
@pytest.mark.parametrize("power", [False, True], ids=["runner", "runner-and-hook"])
def test_kill_at_a_random_moment_loses_nothing(guest, heat, cfn, power):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    states: dict[str, int] = {}
    whole = 0.2
    for round_number in itertools.count():
        # The kills must hit every phase, or this proves nothing; a host that becomes busier or
        # idler between two measurements shifts them.
        if round_number >= ROUNDS and len(states) >= 3:
            break
        assert round_number < MAX_ROUNDS, states
        guest.hook("shell", HOOK % chance.randrange(1, 9))
        for path in guest.counts.iterdir():
            path.unlink()
        for path in guest.state.glob("d-1*"):
            path.unlink()
        heat.requests.clear()
        guest.metadata(cfn())
        start = time.monotonic()
        process = guest.start()
        if round_number % 10 == 0:  # the duration of a whole pass on this host, now
            process.communicate(timeout=60)
            whole = time.monotonic() - start
        else:
            time.sleep(chance.uniform(0.1, 1.1) * whole)
        kill(process)
        if power:
            kill_hook(guest)
        state = guest.state_of("d-1") if (guest.state / "d-1.json").exists() else "none"
        states[state] = states.get(state, 0) + 1
        settle(guest)
        assert guest.state_of("d-1") == "signalled", (seed, round_number)
        assert guest.runs("d-1") <= 1, (seed, round_number)
        bodies = {json.dumps(body) for body in heat.signals}
        assert len(bodies) == 1, (seed, round_number)  # repeated is fine, changed is not
        (body,) = map(json.loads, bodies)
        if (guest.counts / "end").exists() and not power:
            assert body["deploy_status_code"] == 0, (seed, round_number)
        if body["deploy_status_code"] != 0:
            assert "interrupted" in body["deploy_stderr"]
            assert state == "started"


LATE = """
import sys, time
sys.path.insert(0, {hooks!r})
from heat_config import capture, runner
pump = capture._be_pump
def late(*arguments):
    time.sleep(1)
    pump(*arguments)
capture._be_pump = late
sys.exit(runner.main())
"""


@pytest.mark.defect("H1")
def test_runner_killed_while_its_pump_starts_loses_no_answer(guest, heat, cfn, wait_until):
    """On a busy host the pump was still in the runner's group while the hook ran already."""
    guest.hook("shell", HOOK % 1)
    guest.metadata(cfn())
    program = guest.root / "late.py"
    program.write_text(LATE.format(hooks=guest.environment["HEAT_CONFIG_LIB"]))
    process = subprocess.Popen(
        [PYTHON, "-IS", str(program)],
        env=guest.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until((guest.counts / "pid").exists)
    kill(process)
    settle(guest)
    assert guest.runs("d-1") == 1
    assert [body["deploy_status_code"] for body in heat.signals] == [0]


def cut_before(guest, step, *, verb="main()", first=("true",)):
    """Do a pass that dies just before its *step*-th rename or directory sync; return if it did.

    :param first: a command that is run before it dies.
    """
    hooks = guest.environment["HEAT_CONFIG_LIB"]
    program = guest.root / "cut.py"
    program.write_text(
        f"import os, signal, subprocess, sys\nsys.path.insert(0, {hooks!r})\n"
        "left = [int(sys.argv[1])]\n"
        "def cut(function):\n"
        "    def call(*arguments, **keywords):\n"
        "        if left[0] == 0:\n"
        "            subprocess.run(sys.argv[2:], check=True)\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        left[0] -= 1\n"
        "        return function(*arguments, **keywords)\n"
        "    return call\n"
        "os.rename, os.fsync = cut(os.rename), cut(os.fsync)\n"
        f"from heat_config import runner\nsys.exit(runner.{verb})\n"
    )
    done = subprocess.run(
        [PYTHON, "-IS", str(program), str(step), *first],
        env=guest.environment,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode == -signal.SIGKILL


#: All renames and directory syncs of a pass with one deployment; a test below counts them.
WRITES = 16


@pytest.mark.defect("H1")
@pytest.mark.parametrize("step", range(WRITES))
def test_cut_before_each_write_loses_nothing(guest, heat, cfn, step):
    """Every rename and every directory sync is a boundary: die just before the n-th of them."""
    guest.metadata(cfn())
    assert cut_before(guest, step)
    settle(guest)
    assert guest.state_of("d-1") == "signalled"
    assert guest.runs("d-1") == 1
    assert {body["deploy_status_code"] for body in heat.signals} == {0}
    assert not list(guest.state.glob(".*.new"))


def test_pass_has_no_further_write(guest, cfn):
    guest.metadata(cfn())
    assert not cut_before(guest, WRITES)


@pytest.mark.parametrize("step", range(WRITES))
def test_cut_before_undeliverable_is_recorded_loses_nothing(guest, heat, cfn, replying, step):
    replying(410)
    guest.metadata(cfn())
    assert cut_before(guest, step)
    settle(guest)
    assert guest.state_of("d-1") == "undeliverable"
    assert guest.runs("d-1") == 1
    assert guest.result("d-1")["deploy_stdout"] == "out"
    assert not (guest.state / ".waiting").exists()
    count = len(heat.requests)
    assert guest.run().status == 0
    assert len(heat.requests) == count


@pytest.mark.parametrize("step", range(3))
def test_cut_while_a_signal_is_resent_loses_nothing(guest, heat, cfn, replying, step):
    replying(503)
    guest.run(cfn())
    replying(200)
    assert cut_before(guest, step, verb="resend(due=True)")
    assert guest.command("resend").returncode == 0
    assert guest.state_of("d-1") == "signalled"
    assert guest.runs("d-1") == 1
    assert b"c2VjcmV0" not in guest.text_everywhere()


LATE_ANSWER = 'echo \'{"deploy_stdout":"late","deploy_status_code":0}\'\n'


def test_hook_that_outlives_its_runner_is_waited_for(guest, heat, cfn, wait_until):
    guest.shell_hook("shell", guest.gate + LATE_ANSWER)
    guest.metadata(cfn())
    process = guest.start()
    wait_until(lambda: guest.runs("d-1") == 1)
    kill(process)
    with guest.start() as process:
        assert any(b"still runs; waiting for it" in line for line in process.stderr)
        guest.open_gate()
    assert process.returncode == 0
    assert guest.runs("d-1") == 1
    assert heat.signals[0]["deploy_stdout"] == "late"


def pump_of(runner: int) -> int:
    """Return the id of the pump of *runner*'s hook, 0 where there is none."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, fields = path.read_text().partition(" (")[2].rpartition(") ")
            if name == "heat-config-out" and int(fields.split()[1]) == runner:
                return int(path.parent.name)
    return 0


def waits_for_a_lock(pid: int) -> bool:
    """Return whether flock(2) blocks the process *pid*, by proc(5)."""
    blocked = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return ["->", "FLOCK", "ADVISORY", "WRITE", str(pid)] in [words[1:6] for words in blocked]


def test_answer_that_is_written_late_is_not_lost(guest, heat, cfn, wait_until):
    """The pump of an interrupted run got no CPU for a second while the next run waited for it."""
    guest.shell_hook("shell", guest.gate + LATE_ANSWER)
    guest.metadata(cfn())
    process = guest.start()
    wait_until(lambda: guest.runs("d-1") == 1 and pump_of(process.pid))
    pump = pump_of(process.pid)
    hook = int((guest.state / "d-1.pid").read_text().split()[0])
    os.kill(pump, signal.SIGSTOP)
    try:
        kill(process)
        guest.open_gate()
        wait_until(lambda: not alive(hook))
        process = guest.start()
        wait_until(lambda: waits_for_a_lock(process.pid))
        time.sleep(2)
    finally:
        os.kill(pump, signal.SIGCONT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    (body,) = heat.signals
    assert (body["deploy_status_code"], body["deploy_stdout"]) == (0, "late")
    assert "interrupted" not in body["deploy_stderr"]
    assert guest.runs("d-1") == 1


def test_time_limit_holds_for_a_hook_that_outlives_its_runner(guest, heat, cfn, wait_until):
    began = guest.root / "began"
    guest.shell_hook("shell", f"touch {began}\nsleep 600\n")
    for limit in limits(began):
        heat.requests.clear()
        guest.metadata(cfn(id=f"d-{limit}", options={"timeout": limit}))
        process = guest.start()
        wait_until(lambda process=process: began.exists() or process.poll() is not None)
        kill(process)
        assert guest.run().status == 0
    assert heat.signals[0]["deploy_status_code"] == 124


def interrupted(guest, wait_until, runs):
    """Start a pass and cut the power while the hook runs for the *runs*-th time."""
    process = guest.start()
    wait_until(lambda: guest.runs("d-1") == runs)
    kill(process)
    kill_hook(guest)


@pytest.mark.defect("H1")
def test_interrupted_hook_fails_with_a_sentence(guest, heat, cfn, wait_until):
    config = f"#!/bin/sh\necho half way\necho run >>{guest.counts}/d-1\nsleep 60\n"
    guest.metadata(cfn(config, group="script"))
    interrupted(guest, wait_until, 1)
    assert guest.state_of("d-1") == "started"
    assert guest.run().status == 0
    (body,) = heat.signals
    assert body["deploy_status_code"] == 1
    assert body["deploy_stdout"] == "half way\n"
    assert "interrupted" in body["deploy_stderr"]
    assert "on_interrupt: rerun" in body["deploy_stderr"]
    assert guest.runs("d-1") == 1
    assert "heat-config: interrupted id=d-1" in guest.console.read_text()


def test_on_interrupt_rerun_runs_again_three_times_at_most(guest, heat, cfn, wait_until):
    guest.shell_hook("shell", "sleep 60\n")
    guest.metadata(cfn(options={"on_interrupt": "rerun"}))
    for runs in (1, 2, 3, 4):
        interrupted(guest, wait_until, runs)
    assert guest.run().status == 0
    assert guest.runs("d-1") == 4
    (body,) = heat.signals
    assert body["deploy_status_code"] == 1
    assert "at run 4" in body["deploy_stderr"]


@pytest.mark.defect("H1")
def test_on_interrupt_rerun_succeeds_when_it_can(guest, heat, cfn, wait_until):
    guest.shell_hook(
        "shell",
        'test $(wc -l <"$COUNT_DIR/d-1") = 2 || sleep 60\necho \'{"deploy_status_code":0}\'\n',
    )
    guest.metadata(cfn(options={"on_interrupt": "rerun"}))
    interrupted(guest, wait_until, 1)
    assert guest.run().status == 0
    assert heat.signals[0]["deploy_status_code"] == 0


def test_interrupted_deployment_gone_from_the_metadata_is_ended(guest, heat, cfn, wait_until):
    guest.shell_hook("shell", "sleep 60\n")
    guest.metadata(cfn())
    interrupted(guest, wait_until, 1)
    assert guest.run(cfn(id="d-2", group="os-apply-config")).status == 0
    assert guest.state_of("d-1") == "signalled"
    assert {b["deploy_status_code"] for b in heat.signals} == {0, 1}


def test_children_of_a_dead_hook_are_ended_before_it_runs_again(guest, heat, cfn, wait_until):
    guest.shell_hook(
        "shell",
        'sleep 60 &\necho $! >"$COUNT_DIR/child"\nwait\n',
    )
    guest.metadata(cfn())
    process = guest.start()
    wait_until(lambda: (guest.counts / "child").exists() and (guest.counts / "child").read_text())
    kill(process)
    leader = int((guest.state / "d-1.pid").read_text().split()[0])
    child = int((guest.counts / "child").read_text())
    os.kill(leader, signal.SIGKILL)
    wait_until(lambda: not alive(leader))
    assert alive(child)
    assert guest.run().status == 0
    assert not alive(child)
    assert heat.signals[0]["deploy_status_code"] == 1
