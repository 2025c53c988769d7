"""hotplate.stacks.stack: events other than Heat's that end a wait for a stack."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from played_guest import Guest, PlayedMachine

from hotplate.errors import Outcome, SubjectError, ThreadFault, outcome_of
from hotplate.events.background import Background
from hotplate.events.kinds import GuestPanic, ServerBoot, StackResource
from hotplate.events.log import EventLog
from hotplate.settings import Settings
from hotplate.stacks.deployment import Deployment, DeploymentSpec
from hotplate.stacks.stack import STACK_TYPE, Stack
from hotplate.stacks.template import Template
from hotplate.testbed.testbed import Testbed

#: Never reached: the limit of the whole run shows a wait that does not end.
SECONDS = 3600

NEVER = Template(source="a test", template={})
WAITS = yaml.safe_load("""
heat_template_version: '2018-08-31'
resources:
  config: {type: OS::Heat::SoftwareConfig, properties: {group: script, config: 'true'}}
  deployment:
    type: OS::Heat::SoftwareDeployment
    properties: {config: {get_resource: config}, server: {get_resource: web}}
  web:
    type: OS::Nova::Server
    properties: {name: web, image: tiny, flavor: any, user_data_format: SOFTWARE_CONFIG}
""")


class Cloud:
    """A cloud whose Heat accepts everything and does nothing."""

    def __init__(self) -> None:
        self.events = EventLog()

    def heat(self) -> Any:
        return self

    @property
    def stacks(self) -> Any:
        return self

    def create(self, **_: Any) -> Any:
        return {"stack": {"id": "id"}}

    def update(self, _name: str, **arguments: Any) -> None:
        self.updated = arguments

    def get(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(stack_status="CREATE_COMPLETE")


def panic(cloud: Cloud, action: str = "pause") -> None:
    cloud.events.add(GuestPanic(action), server="id-of-web")


def later(call: Any, *arguments: Any) -> threading.Timer:
    timer = threading.Timer(0.2, call, arguments)
    timer.start()
    return timer


@pytest.fixture
def cloud() -> Cloud:
    cloud = Cloud()
    cloud.events.add(ServerBoot(name="web"), server="id-of-web")
    return cloud


def test_stack_is_shown_with_its_status_and_reason(cloud: Cloud) -> None:
    stack = Stack.create(cloud, NEVER)
    stack.reason = "Stack CREATE started"
    assert repr(stack) == f'<stack "{stack.name}": CREATE_IN_PROGRESS Stack CREATE started>'


def test_update_keeps_the_parameters_of_earlier_updates(cloud: Cloud) -> None:
    stack = Stack.create(cloud, replace(NEVER, parameters={"size": "1", "word": "one"}))
    stack.update(parameters={"word": "two"})
    stack.update(parameters={"size": "2"})
    assert cloud.updated["parameters"] == {"size": "2", "word": "two"}


def test_panicked_guest_is_named_at_once(cloud: Cloud) -> None:
    stack = Stack.create(cloud, NEVER)
    timer = later(panic, cloud)
    with pytest.raises(SubjectError, match='the server "web" panicked while CREATE of') as raised:
        stack.wait(seconds=SECONDS)
    timer.join()
    assert outcome_of(raised.value) is Outcome.FAILED


def test_wait_for_a_deployment_ends_when_the_guest_panics(cloud: Cloud) -> None:
    done = Deployment(cloud, "id-of-web", DeploymentSpec("script", "true"))
    timer = later(panic, cloud)
    with pytest.raises(SubjectError, match='the server "web" panicked'):
        done.wait(seconds=SECONDS)
    timer.join()


def test_earlier_or_survived_panic_does_not_end_a_wait(
    cloud: Cloud,
) -> None:
    panic(cloud)
    stack = Stack.create(cloud, NEVER, name="s")
    panic(cloud, "run")
    end = StackResource(
        stack="s", resource="s", type=STACK_TYPE, action="CREATE", status="COMPLETE"
    )
    cloud.events.add(end)
    assert stack.wait(seconds=SECONDS).status == "CREATE_COMPLETE"


def test_fault_in_a_background_thread_is_raised_at_once(cloud: Cloud) -> None:
    stack = Stack.create(cloud, NEVER)

    def work() -> None:
        raise KeyError("boom")

    timer = later(Background(cloud.events, work, name="console").start)
    with pytest.raises(ThreadFault, match='in the thread "console"'):
        stack.wait(seconds=SECONDS)
    timer.join()


def test_panic_of_a_played_machine_fails_the_stack(
    play: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """As QEMU reports it, with the guest stopped (``guest-panicked``)."""
    settings = Settings.load(
        {"memory": 128, "accelerator": "tcg", "wiring": "namespace", "cache": tmp_path / "cache"},
        environ={},
        directory=tmp_path,
    )
    bed = Testbed(play.image, settings=settings, directory=tmp_path / "bed", events=EventLog())

    def dies(_: Any) -> None:
        (server,) = bed.servers
        server.machine._on_qmp_event("GUEST_PANICKED", {"action": "pause"})

    role = staticmethod(lambda name: Guest(agent=False, on_user_data=dies))
    monkeypatch.setattr(PlayedMachine, "role", role)
    with bed:
        stack = Stack.create(bed.cloud, Template(source="a test", template=WAITS))
        with pytest.raises(SubjectError, match='the server "web" panicked while CREATE of'):
            stack.wait(seconds=SECONDS)
