"""What a command leaves of a run, and what it says of a guest's words."""

from __future__ import annotations

import pytest

from hotplate import cli
from hotplate.cli import up
from hotplate.cli.case_run import CaseRun
from hotplate.cli.cases import Case
from hotplate.cli.interrupts import Interrupts
from hotplate.errors import Outcome
from hotplate.report.artifacts import Artifacts
from hotplate.report.html import RunReport
from hotplate.testbed.qemu_compute import DISK
from hotplate.verdict.verdict import Subject, Verdict


def disks_after(folder, outcome, *words):
    """The disks that are there when the run of an image has ended so."""
    args = cli._parser(["test"]).parse_args(["test", "web.qcow2", *words])
    case = CaseRun(args, Case("web.qcow2", args.images[0]), Interrupts())
    artifacts = Artifacts(folder, "web.qcow2")
    for server in ("servers/web", "second-try/servers/web"):
        (artifacts.folder / server).mkdir(parents=True)
        (artifacts.folder / server / DISK).write_bytes(b"what the guest wrote")
        (artifacts.folder / server / "console.log").touch()
    subject = Subject("web.qcow2")
    verdict = Verdict(subject=subject, outcome=outcome, status="", reasons=(), stages=())
    case.leave(artifacts, RunReport(verdict, ()))
    assert len([*artifacts.folder.glob("**/console.log")]) == 2
    return len([*artifacts.folder.glob(f"**/{DISK}")])


@pytest.mark.parametrize(
    ("outcome", "words", "disks"),
    [
        (Outcome.PASSED, [], 0),
        (Outcome.PASSED, ["--keep"], 2),
        (Outcome.FAILED, [], 2),
        (Outcome.LOST, [], 2),
    ],
)
def test_the_disks_of_a_run_that_passed_go(tmp_path, monkeypatch, outcome, words, disks):
    monkeypatch.chdir(tmp_path)
    assert disks_after(tmp_path / "artifacts", outcome, *words) == disks


class TalkingUp:
    """A session in which a guest chose the reason of a failure."""

    def __init__(self, *_, say, **__):
        say('the stack "web": CREATE_FAILED (\x1b]0;owned\x07\x1b[2J\u202egood)')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    keep = False

    def ways_in(self):
        return "hotplate ssh web"

    def run(self):
        pass


def test_up_lets_no_guest_write_on_the_terminal(tmp_path, monkeypatch, capsys):
    from hotplate.image.inspect import Image
    from hotplate.session import up as sessions

    monkeypatch.chdir(tmp_path)
    (tmp_path / "web.qcow2").touch()
    monkeypatch.setattr(sessions, "Up", TalkingUp)
    monkeypatch.setattr(Image, "open", lambda *_, **__: None)
    args = cli._parser(["up"]).parse_args(["up", "web.qcow2"])
    assert up.run(args) == 0
    shown = capsys.readouterr().out
    assert 'the stack "web": CREATE_FAILED' in shown
    assert all(each == "\n" or each.isprintable() for each in shown)
