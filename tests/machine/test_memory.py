"""Servers of a stack without memory on the host: they wait, and do not block others."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import tiny_disk

from hotplate.errors import HostError
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.machine import admission
from hotplate.settings import AcceleratorChoice, Settings
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.testbed.testbed import Testbed
from hotplate.timing.deadline import Deadline

pytestmark = pytest.mark.tool("qemu-img")

SECONDS = 60.0
MEMORY_MIB = 64
SERVER = {"type": "OS::Nova::Server", "properties": {"image": "any", "flavor": "any"}}


def template(**resources) -> Template:
    return Template("the test", {"heat_template_version": "2018-08-31", "resources": resources})


@pytest.fixture
def memory(tmp_path, monkeypatch) -> Path:
    """Directory of the reservations on a host with memory for one machine at a time."""
    monkeypatch.setenv("HOTPLATE_CACHE", str(tmp_path / "cache"))
    room = (MEMORY_MIB + admission.OVERHEAD_MIB) * 1.5 / admission.SHARE
    monkeypatch.setattr(admission, "host_mib", lambda: int(room))
    return tmp_path / "cache" / "memory"


@pytest.fixture
def testbed(tmp_path, memory):
    settings = Settings(memory=MEMORY_MIB, cpus=1, accelerator=AcceleratorChoice.TCG)
    image = Image.open(tiny_disk.make(tmp_path / "disk.raw"))
    with Testbed(image, settings=settings, directory=tmp_path, events=EventLog()) as running:
        yield running
    assert running.servers == []
    assert admission.held(memory) == []


@pytest.fixture
def somebody_elses(memory):
    """A machine of another process that uses all the memory; it ends when this is closed."""
    with ExitStack() as machine:
        machine.enter_context(
            admission.reserve(MEMORY_MIB, directory=memory, deadline=Deadline(5, "memory"))
        )
        yield machine


def event(testbed: Testbed, kind: str, *, since: int = 0):
    first = testbed.events.wait(lambda each: each.kind == kind, seconds=SECONDS, since=since)
    assert first is not None, kind
    return first


def test_heat_continues_while_a_server_waits(somebody_elses, testbed):
    stack = Stack.create(testbed.cloud, template(one=SERVER))
    waiting = event(testbed, "waiting")
    assert "waiting for memory: 1 machines hold" in waiting.detail["text"]
    assert testbed.compute.status(waiting.server) == ("BUILD", "")
    value = {"type": "OS::Heat::Value", "properties": {"value": "here"}}
    other = Stack.create(testbed.cloud, template(value=value))
    assert other.wait(seconds=SECONDS).status == "CREATE_COMPLETE"
    # It is admitted and cannot be started, which is then its state, and the stack's.
    testbed.image.path.unlink()
    somebody_elses.close()
    with pytest.raises(HostError, match="no disk could be made"):
        stack.wait(seconds=SECONDS)
    word, reason = testbed.compute.status(waiting.server)
    assert word == "ERROR"
    assert "no disk could be made" in reason


def test_waiting_server_can_be_deleted(somebody_elses, testbed):
    stack = Stack.create(testbed.cloud, template(one=SERVER))
    waiting = event(testbed, "waiting").server
    # Not by the stack's deletion: Heat lets operations in progress go on for up to four minutes.
    testbed.cloud.servers.delete(waiting)
    assert stack.wait(seconds=SECONDS).status == "CREATE_FAILED"
    assert testbed.compute.fault is None
    assert testbed.compute.status(waiting) == ("ERROR", "there is no such server")
    somebody_elses.close()


def test_teardown_does_not_wait_for_a_waiting_server(somebody_elses, memory, tmp_path):
    """The other machine has all the memory until after the teardown."""
    settings = Settings(memory=MEMORY_MIB, cpus=1, accelerator=AcceleratorChoice.TCG)
    image = Image.open(tiny_disk.make(tmp_path / "disk.raw"))
    with Testbed(image, settings=settings, directory=tmp_path, events=EventLog()) as running:
        Stack.create(running.cloud, template(one=SERVER))
        event(running, "waiting")
    assert len(admission.held(memory)) == 1
    assert [each for each in running.events if each.kind == "power-on"] == []


def test_parts_of_the_user_data_are_in_the_events(somebody_elses, testbed):
    properties = {**SERVER["properties"], "user_data_format": "SOFTWARE_CONFIG"}
    Stack.create(testbed.cloud, template(one={**SERVER, "properties": properties}))
    parts = event(testbed, "user-data").detail["parts"]
    assert "cfn-init-data" in parts
    event(testbed, "waiting")
    somebody_elses.close()


@pytest.mark.boots
def test_second_server_starts_when_the_first_has_gone(testbed):
    stack = Stack.create(testbed.cloud, template(one=SERVER, two=SERVER))
    first = event(testbed, "power-on").server
    waiting = event(testbed, "waiting")
    assert waiting.server != first
    assert testbed.compute.status(first)[0] == "ACTIVE"
    assert testbed.compute.status(waiting.server)[0] == "BUILD"
    # Heat has seen that the first is up, and does not poll it again.
    assert testbed.events.wait(_is_up, seconds=SECONDS)
    since = len(testbed.events)
    testbed.compute.delete(first)
    assert event(testbed, "power-on", since=since).server == waiting.server
    assert stack.wait(seconds=SECONDS).status == "CREATE_COMPLETE"
    assert testbed.compute.status(waiting.server)[0] == "ACTIVE"


def _is_up(happened):
    detail = happened.detail
    return detail.get("type") == "OS::Nova::Server" and detail.get("status") == "COMPLETE"
