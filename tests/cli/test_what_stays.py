"""The files that a command leaves of a run, and the escaping of a guest's output."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml
from played_cases import Played, runs, wait_until
from played_guest import PLAYED_DISK, Guest

from hotplate import cli
from hotplate.cases.case_run import CaseRun
from hotplate.cases.request import Request
from hotplate.cases.table import Case, TemplateChoice
from hotplate.cli import up
from hotplate.errors import Interrupted, Outcome
from hotplate.interrupts import Interrupts
from hotplate.report.artifacts import Artifacts
from hotplate.report.html import RunReport
from hotplate.settings import AcceleratorChoice, Settings, WiringChoice
from hotplate.testbed.maker import DISK, DRIVE
from hotplate.trial.trial import Trial
from hotplate.verdict.verdict import Subject, Verdict


def disks_after(folder, outcome, *, keep):
    """Return the remaining disks after the run of an image has ended so."""
    request = Request(Settings(), keep=keep)
    case = CaseRun(request, Case("web.qcow2", Path("web.qcow2")), Interrupts())
    artifacts = Artifacts(folder, "web.qcow2")
    for server in ("servers/web", "second-try/servers/web"):
        (artifacts.folder / server).mkdir(parents=True)
        (artifacts.folder / server / DISK).write_bytes(b"what the guest wrote")
        (artifacts.folder / server / DRIVE).write_bytes(b"what the guest was given")
        (artifacts.folder / server / "console.log").touch()
    subject = Subject("web.qcow2")
    verdict = Verdict(subject=subject, outcome=outcome, status="", reasons=(), stages=())
    case.leave(artifacts, RunReport(verdict, ()))
    assert len([*artifacts.folder.glob("**/console.log")]) == 2
    disks = len([*artifacts.folder.glob(f"**/{DISK}")])
    assert len([*artifacts.folder.glob(f"**/{DRIVE}")]) == disks
    return disks


@pytest.mark.parametrize(
    ("outcome", "keep", "disks"),
    [
        (Outcome.PASSED, False, 0),
        (Outcome.PASSED, True, 2),
        (Outcome.FAILED, False, 2),
        (Outcome.LOST, False, 2),
    ],
)
def test_disks_of_a_passed_run_are_removed(tmp_path, outcome, keep, disks):
    assert disks_after(tmp_path / "artifacts", outcome, keep=keep) == disks


SECRET = "hush-4711-hush"
HIDDEN = {
    "heat_template_version": "2018-08-31",
    "parameters": {
        "password": {"type": "string", "hidden": True},
        "word": {"type": "string", "hidden": False},
    },
    "resources": {
        "config": {
            "type": "OS::Heat::SoftwareConfig",
            "properties": {
                "group": "script",
                "inputs": [{"name": "password"}],
                "config": "#!/bin/sh\n",
            },
        },
        "server": {
            "type": "OS::Nova::Server",
            "properties": {
                "name": "web",
                "image": "some image",
                "flavor": "m1.small",
                "user_data_format": "SOFTWARE_CONFIG",
                "user_data": {
                    "str_replace": {
                        "template": "#cloud-config\npassword: PASSWORD\n",
                        "params": {"PASSWORD": {"get_param": "password"}},
                    }
                },
                "metadata": {"password": {"get_param": "password"}},
            },
        },
        "deployment": {
            "type": "OS::Heat::SoftwareDeployment",
            "properties": {
                "config": {"get_resource": "config"},
                "server": {"get_resource": "server"},
                "input_values": {"password": {"get_param": "password"}},
            },
        },
    },
}


def files_with(folder, text):
    """Return the names of the files in a folder that contain a text."""
    files = [each for each in folder.rglob("*") if each.is_file()]
    # The disk of a failed run is documented to contain the guest's data.
    there = [each for each in files if PLAYED_DISK not in each.parts]
    assert there
    return {each.name for each in there if text.encode() in each.read_bytes()}


def run_of(play, folder, guest, *, keep=False):
    """Run the command on a played guest; return the outcome and the run's folder."""
    play.play_as(guest)
    (folder / "secret.yaml").write_text(yaml.safe_dump(HIDDEN))
    settings = Settings(
        patience=20,
        limit=120,
        memory=128,
        accelerator=AcceleratorChoice.TCG,
        wiring=WiringChoice.NAMESPACE,
    )
    given = {"password": SECRET, "word": "open"}
    template = TemplateChoice(folder / "secret.yaml", parameters=given)
    run = CaseRun(
        Request(settings, keep=keep), Case("web", play.image.path, template), Interrupts()
    )
    done = run.run()
    run.write_report(done)
    return done.verdict.outcome, run.folder


FAILING = {"deploy_status_code": 3, "deploy_stderr": f"{SECRET} is refused", "deploy_stdout": ""}


@pytest.mark.parametrize("outcome", [Outcome.PASSED, Outcome.FAILED, Outcome.INTERRUPTED])
def test_value_of_a_hidden_parameter_is_nowhere(play, tmp_path, monkeypatch, outcome):
    """Heat also shows hidden parameters as stars (heat.engine.parameters, HIDDEN)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOTPLATE_CACHE", str(tmp_path / "cache"))
    judge = Trial.judge

    def judged(trial):
        verdict = judge(trial)
        assert (trial.folder / "cloud" / "heat.db").exists()
        if outcome is Outcome.INTERRUPTED:
            raise Interrupted(signal.SIGTERM)
        return verdict

    monkeypatch.setattr(Trial, "judge", judged)
    guest = Guest(answers={"deployment": FAILING}) if outcome is Outcome.FAILED else Guest()
    ended, folder = run_of(play, tmp_path, guest)
    assert ended is outcome
    assert files_with(folder, SECRET) == set()
    assert json.loads((folder / "parameters.json").read_text()) == {
        "password": "***",
        "word": "open",
    }
    assert (folder / "cloud" / "heat.log").exists()
    assert [*folder.rglob("*.db*")] == []


def test_databases_are_kept_with_keep(play, tmp_path, monkeypatch):
    from hotplate.cases import case_run

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOTPLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(case_run, "_pause", lambda *_: None)
    _, folder = run_of(play, tmp_path, Guest(), keep=True)
    names = {"heat.db", "neighbours.db"}
    assert names <= {each.name for each in (folder / "cloud").iterdir()}
    assert names & files_with(folder, SECRET)
    assert "parameters.json" not in files_with(folder, SECRET)


def test_databases_of_a_killed_case_are_removed(tmp_path):
    played = Played(tmp_path)
    words = played.images(web="wait", db="pass")
    process = played.start(*words, "-j", "2", "--retry-lost", "0")
    wait_until(lambda: played.tries("web"))
    (folder,) = (tmp_path / "artifacts").glob("*-web.raw")
    (folder / "cloud").mkdir()
    (folder / "cloud" / "heat.db").write_text(SECRET)
    os.kill(played.tries("web")[0], signal.SIGKILL)
    process.communicate(timeout=120)
    assert not runs(process.pid)
    assert files_with(tmp_path / "artifacts", SECRET) == set()


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


def test_up_prints_no_control_characters_of_guests(tmp_path, monkeypatch, capsys):
    from hotplate.image.inspect import Image
    from hotplate.session import up as sessions

    monkeypatch.chdir(tmp_path)
    (tmp_path / "web.qcow2").touch()
    monkeypatch.setattr(sessions, "Up", TalkingUp)
    monkeypatch.setattr(Image, "open", lambda *_, **__: None)
    words = ["up", "web.qcow2"]
    args = cli._parser(["up"]).parse_args(words)
    args.words = words
    assert up.run(args) == 0
    shown = capsys.readouterr().out
    assert 'the stack "web": CREATE_FAILED' in shown
    assert all(each == "\n" or each.isprintable() for each in shown)
