from __future__ import annotations

import io
import time

import pytest

from hotplate import output
from hotplate.errors import HostError
from hotplate.events.log import EventLog
from hotplate.report.terminal import Progress, summary
from hotplate.verdict.stages import ORDER, Mark, Stage
from hotplate.verdict.verdict import Subject, of_error


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError("gone")


def mark(stage: Stage, seconds: float, start: float) -> Mark:
    return Mark(stage, start + seconds, "seen")


def test_stages_are_plain_lines_without_terminal():
    stream = io.StringIO()
    with Progress(stream, stages=ORDER, expected={Stage.BOOTED: 17.2}) as progress:
        start = time.monotonic()
        progress.powered(start)
        progress.reached(mark(Stage.BOOTED, 16.0, start))
        progress.reached(mark(Stage.BOOTED, 17.0, start))
        progress.reached(mark(Stage.NETWORK_UP, 20.25, start))
        progress.say("the \x1b[31mmachine\x1b[0m was lost; trying once more")
    assert stream.getvalue().splitlines() == [
        "   16.0 s  booted  (usually 17 s)",
        "   20.2 s  network up",
        "the machine was lost; trying once more",
    ]


@pytest.fixture(autouse=True)
def capable_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output, "INTERVAL", 0.01)


def test_live_line_shows_the_present_action_before_power_on():
    stream = Terminal()
    with Progress(stream, stages=ORDER) as progress:
        progress.say("uploading web.qcow2")
        end = time.monotonic() + 30
        while " s  uploading web.qcow2" not in stream.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
    assert " s  uploading web.qcow2" in stream.getvalue()


def test_live_line_shows_awaited_stage_and_is_wiped():
    stream = Terminal()
    with Progress(stream, stages=ORDER, expected={Stage.BOOTED: 10.0}) as progress:
        progress.powered(time.monotonic() - 5)
        end = time.monotonic() + 30
        while "waiting for: booted" not in stream.getvalue() and time.monotonic() < end:
            time.sleep(0.05)
    assert "waiting for: booted  usually at 10 s [##########" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_quiet_progress_writes_nothing():
    stream = Terminal()
    with Progress(stream, stages=ORDER, quiet=True) as progress:
        progress.reached(mark(Stage.BOOTED, 1.0, time.monotonic()))
        progress.say("hello")
    assert stream.getvalue() == ""


def test_closed_terminal_does_not_end_the_run():
    with Progress(Gone(), stages=ORDER) as progress:
        progress.reached(mark(Stage.BOOTED, 1.0, time.monotonic()))
        progress.reached(mark(Stage.NETWORK_UP, 2.0, time.monotonic()))


def block(story, status, **more):
    stand_ins = ("OS::Neutron::Port is OS::Heat::None",)
    return summary(story.result(status, stand_ins=stand_ins, artifacts="/artifacts/last", **more))


def test_summary_of_good_run_shows_outputs_and_passed(passed):
    outputs = {"stdout": "one\ntwo\x1b[2J\n", "code": 0, "long": "\n".join(["x"] * 40)}
    text = block(passed, "CREATE_COMPLETE", outputs=outputs)
    lines = text.splitlines()
    assert lines[-1] == "PASSED"
    assert "artifacts: /artifacts/last" in lines
    assert "  stdout = one" in lines
    assert "    two" in lines
    assert "  code = 0" in lines
    assert "    ... 28 more lines, see verdict.json" in lines
    assert "\x1b" not in text
    assert "OS::Neutron::Port is OS::Heat::None" in text


def test_last_line_of_failure_is_stage_and_advice(story):
    story.up()
    story.agent(UnitFileState="disabled", ActiveState="inactive", SubState="dead")
    lines = block(story, "CREATE_FAILED").splitlines()
    assert lines[-1] == (
        'FAILED: not reached: agent polled: the unit "os-collect-config.service" is installed but '
        "not enabled. Enable it in the image: systemctl unmask, then systemctl enable "
        "os-collect-config.service"
    )
    assert "evidence" in lines
    assert "         -  agent polled" in lines


def test_stack_without_a_machine_has_no_time(story):
    """Seconds are counted from power-on: it read "stack: CREATE_FAILED after 0 s"."""
    assert "stack: CREATE_FAILED" in block(story, "CREATE_FAILED", reason="no").splitlines()
    story.power()
    assert "stack: CREATE_FAILED after " in block(story, "CREATE_FAILED")


def test_unmet_expectations_are_a_block_in_order(passed):
    text = block(passed, "CREATE_COMPLETE", problems=["one is wrong", "two is\x1b wrong"])
    assert "\nnot as expected\n  one is wrong\n  two is" in text
    assert text.splitlines()[-1] == "FAILED: one is wrong (one of 2 reasons, see above)"
    assert text.count("two is") == 1
    alone = block(passed, "CREATE_COMPLETE", problems=["one is wrong"])
    assert "not as expected" not in alone
    assert alone.splitlines()[-1] == "FAILED: one is wrong"


def test_summary_of_early_error_has_no_empty_lines():
    error = HostError("there is no room", hint="df -h")
    text = summary(of_error(error, Subject(image="web"), EventLog(), now=0.0, artifacts="/left"))
    assert text == "artifacts: /left\nHOST ERROR: there is no room (hint: df -h)\n"
