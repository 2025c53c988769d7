"""Through the real Heat: faults of the host stay the host's, and problems are noticed."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from played_guest import Guest, PlayedMachine

from hotplate.errors import HostError, HotplateError, MachineLostError, Outcome, outcome_of
from hotplate.events.log import EventLog
from hotplate.settings import Settings
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import DeadlineExceeded
from hotplate.trial.guest_probe import LOG_SECONDS

pytestmark = pytest.mark.slow

SERVER = {
    "type": "OS::Nova::Server",
    "properties": {"image": "any", "flavor": "any", "user_data_format": "SOFTWARE_CONFIG"},
}
OUTPUTS = [{"name": "result"}, {"name": "url"}, {"name": "problem", "error_output": True}]


def template(**deployment):
    return {
        "heat_template_version": "2018-08-31",
        "resources": {
            "server": SERVER,
            "config": {
                "type": "OS::Heat::SoftwareConfig",
                "properties": {"group": "script", "config": "true", "outputs": OUTPUTS},
            },
            "deployment": {
                "type": "OS::Heat::SoftwareDeployment",
                "properties": {
                    "config": {"get_resource": "config"},
                    "server": {"get_resource": "server"},
                    **deployment,
                },
            },
        },
    }


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (HostError("QEMU could not start the machine"), Outcome.HOST),
        (OSError(errno.EMFILE, "Too many open files"), Outcome.HOST),
        (OSError(errno.ENOSPC, "No space left on device"), Outcome.HOST),
        (MachineLostError("the helper process was killed"), Outcome.LOST),
        (KeyError("ours"), Outcome.ERROR),
    ],
    ids=lambda each: type(each).__name__,
)
def test_start_error_crosses_heat_unchanged(play, monkeypatch, error, outcome):
    def start(self, *, incoming=None):
        raise error

    monkeypatch.setattr(PlayedMachine, "start", start)
    with pytest.raises(type(error)) as raised:
        play(template())
    assert raised.value is error
    assert outcome_of(raised.value) is outcome


def test_awaited_stack_fails_with_start_error(play, monkeypatch, tmp_path):
    def start(self, *, incoming=None):
        raise HostError("QEMU could not start the machine")

    monkeypatch.setattr(PlayedMachine, "start", start)
    given = {"accelerator": "tcg", "cache": tmp_path / "cache"}
    settings = Settings.load(given, environ={}, directory=tmp_path)
    with Testbed(play.image, settings=settings, directory=tmp_path, events=EventLog()) as testbed:
        stack = Stack.create(testbed.cloud, Template(source="a test", template=template()))
        with pytest.raises(HostError, match="QEMU could not start the machine"):
            stack.wait()


def test_heats_own_error_is_not_the_templates(play, monkeypatch, tmp_path):
    def create_stack(*_args, **_more):
        raise RuntimeError("a fault in Heat")

    given = {"accelerator": "tcg", "cache": tmp_path / "cache"}
    settings = Settings.load(given, environ={}, directory=tmp_path)
    with Testbed(play.image, settings=settings, directory=tmp_path, events=EventLog()) as testbed:
        # The cloud has to import Heat first.
        from heat.engine.service import EngineService

        monkeypatch.setattr(EngineService, "create_stack", create_stack)
        with pytest.raises(HotplateError, match="the embedded Heat itself failed") as raised:
            Stack.create(testbed.cloud, Template(source="a test", template=template()))
    assert outcome_of(raised.value) is Outcome.ERROR


@pytest.mark.parametrize(
    ("guest", "times"), [(Guest(agent=False), 1), (Guest(boots=False), 0)], ids=["up", "not up"]
)
def test_unreachable_guest_is_awaited_once(play, monkeypatch, guest, times):
    """Its logs were waited for too, after its answers had been waited for in vain.

    One that never asked for its metadata cannot know of the shell.
    """
    waits = []

    def shell(_server, *, seconds):
        waits.append(seconds)
        raise DeadlineExceeded("gave up waiting for a root shell")

    monkeypatch.setattr(Server, "shell", shell)
    verdict = play(template(), guest).verdict
    assert verdict.outcome is Outcome.FAILED
    # The check for a guest at rest waits for a shorter time.
    assert len([each for each in waits if each >= LOG_SECONDS]) == times


def answering(**outputs):
    return Guest(answers={"deployment": {"deploy_status_code": 0, **outputs}})


def test_unsent_outputs_are_noticed(play):
    verdict = play(template(), answering(result="x")).verdict
    assert verdict.passed
    assert [(each.kind, each.sentence) for each in verdict.noticed] == [
        ("output-missing", 'the deployment "deployment" did not send its output "url"')
    ]


def test_sent_outputs_are_not_noticed(play):
    # An empty output was sent.
    assert play(template(), answering(result="", url="x")).verdict.noticed == ()


def test_deployment_without_signal_has_no_unsent_outputs(play):
    assert play(template(signal_transport="NO_SIGNAL")).verdict.noticed == ()


class Kept:
    """A guest with the result of a hook, as the runner keeps it."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    def run(self, command, *, timeout):
        del timeout
        kept = command.startswith("cat /var/lib/heat-config/deployed/")
        return SimpleNamespace(rc=0, stdout=self.answer if kept else b"", stderr=b"")


def keeping(answer, monkeypatch):
    """Return a guest whose hook fails, and let it have ``answer`` as the kept result."""
    for name in ("shell", "guest"):
        monkeypatch.setattr(Server, name, lambda *_args, **_more: Kept(answer))
    return Guest(answers={"deployment": {"deploy_status_code": 2}})


def test_unsent_error_of_hook_is_quoted_from_the_guest(play, monkeypatch):
    kept = {"deploy_stderr": "trying\nno such package: s3cretword\n", "deploy_status_code": 2}
    body = template(signal_transport="NO_SIGNAL")
    body["parameters"] = {"word": {"type": "string", "hidden": True, "default": "s3cretword"}}
    verdict = play(body, keeping(json.dumps(kept).encode(), monkeypatch)).verdict
    assert verdict.outcome is Outcome.FAILED
    assert 'it said "no such package: REDACTED". What it wrote is in' in verdict.last_line()
    (file,) = Path(verdict.artifacts).glob("deployments/*.txt")
    assert "trying\nno such package: REDACTED\n" in file.read_text()


@pytest.mark.parametrize(
    "answer", [b"", b"no JSON", b"[" * 10_000, b"[1]"], ids=lambda each: each[:8]
)
def test_unsent_error_that_cannot_be_read_is_named_by_its_place(play, monkeypatch, answer):
    guest = keeping(answer, monkeypatch)
    line = play(template(signal_transport="NO_SIGNAL"), guest).verdict.last_line()
    assert 'ended with status 2 for "deployment". What it wrote was not sent to Heat' in line


def test_hook_that_ran_twice_fails_complete_stack(play, monkeypatch):
    run = PlayedMachine._run

    def twice(self, deployment):
        self._mark("started", deployment)
        return run(self, deployment)

    monkeypatch.setattr(PlayedMachine, "_run", twice)
    verdict = play(template(), answering(result="x", url="y")).verdict
    assert verdict.status == "CREATE_COMPLETE"
    assert verdict.outcome is Outcome.FAILED
    assert 'FAILED: the hook "script" ran 2 times' in verdict.last_line()
