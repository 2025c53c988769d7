"""Servers of a stack without memory on the host: they wait, and do not block others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
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


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Iterator[Path]:
    """The cache of a host with memory for one machine at a time."""
    room = (MEMORY_MIB + admission.OVERHEAD_MIB) * 1.5 / admission.SHARE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "host_mib", lambda: int(room))
        yield tmp_path_factory.mktemp("cache")


def everything(cache: Path) -> AbstractContextManager[None]:
    """Reserve all the memory, as a machine of another process."""
    return admission.reserve(MEMORY_MIB, directory=cache / "memory", deadline=Deadline(5, "memory"))


@pytest.fixture(scope="module")
def testbed(cache: Path, tmp_path_factory) -> Iterator[Testbed]:
    directory = tmp_path_factory.mktemp("testbed")
    settings = Settings(memory=MEMORY_MIB, cpus=1, accelerator=AcceleratorChoice.TCG, cache=cache)
    image = Image.open(tiny_disk.make(directory / "disk.raw"))
    with ExitStack() as other:
        with Testbed(image, settings=settings, directory=directory, events=EventLog()) as running:
            yield running
            # A teardown does not wait for a waiting server: the other machine has all the memory
            # until after it.
            other.enter_context(everything(cache))
            since = len(running.events)
            Stack.create(running.cloud, template(last=SERVER))
            event(running, "waiting", since=since)
        assert len(admission.live_reservations(cache / "memory")) == 1
        assert not any(each.kind == "power-on" for each in running.events.since(since))
    assert running.servers == []
    assert admission.live_reservations(cache / "memory") == []


@pytest.fixture
def somebody_elses(cache: Path) -> Iterator[ExitStack]:
    """A machine of another process that uses all the memory; it ends when this is closed."""
    with ExitStack() as machine:
        machine.enter_context(everything(cache))
        yield machine


def event(testbed: Testbed, kind: str, *, since: int = 0):
    first = testbed.events.wait(lambda each: each.kind == kind, seconds=SECONDS, since=since)
    assert first is not None, kind
    return first


def test_waiting_server_can_be_deleted(somebody_elses, testbed):
    since, fault = len(testbed.events), testbed.compute.fault
    stack = Stack.create(testbed.cloud, template(one=SERVER))
    waiting = event(testbed, "waiting", since=since).server
    # Not by the stack's deletion: Heat lets operations in progress go on for up to four minutes.
    testbed.cloud.servers.delete(waiting)
    assert stack.wait(seconds=SECONDS).status == "CREATE_FAILED"
    assert testbed.compute.fault is fault
    assert testbed.compute.status(waiting) == ("ERROR", "there is no such server")


def test_heat_continues_while_a_server_waits(somebody_elses, testbed):
    since = len(testbed.events)
    properties = {**SERVER["properties"], "user_data_format": "SOFTWARE_CONFIG"}
    stack = Stack.create(testbed.cloud, template(one={**SERVER, "properties": properties}))
    parts = event(testbed, "user-data", since=since).detail["parts"]
    assert "cfn-init-data" in parts
    waiting = event(testbed, "waiting", since=since)
    assert "waiting for memory: 1 machines hold" in waiting.detail["text"]
    assert testbed.compute.status(waiting.server) == ("BUILD", "")
    value = {"type": "OS::Heat::Value", "properties": {"value": "here"}}
    other = Stack.create(testbed.cloud, template(value=value))
    assert other.wait(seconds=SECONDS).status == "CREATE_COMPLETE"
    # It is admitted and cannot be started, which is then its state, and the stack's.
    path = testbed.image.path
    aside = path.rename(path.with_suffix(".aside"))
    somebody_elses.close()
    with pytest.raises(HostError, match="no disk could be made"):
        stack.wait(seconds=SECONDS)
    aside.rename(path)
    word, reason = testbed.compute.status(waiting.server)
    assert word == "ERROR"
    assert "no disk could be made" in reason


@pytest.mark.boots
def test_second_server_starts_when_the_first_has_gone(testbed):
    since = len(testbed.events)
    stack = Stack.create(testbed.cloud, template(one=SERVER, two=SERVER))
    first = event(testbed, "power-on", since=since).server
    waiting = event(testbed, "waiting", since=since)
    assert waiting.server != first
    assert testbed.compute.status(first)[0] == "ACTIVE"
    assert testbed.compute.status(waiting.server)[0] == "BUILD"
    # Heat has seen that the first is up, and does not poll it again.
    assert testbed.events.wait(_is_up, seconds=SECONDS, since=since)
    since = len(testbed.events)
    testbed.compute.delete(first)
    assert event(testbed, "power-on", since=since).server == waiting.server
    assert stack.wait(seconds=SECONDS).status == "CREATE_COMPLETE"
    assert testbed.compute.status(waiting.server)[0] == "ACTIVE"
    testbed.compute.delete(waiting.server)


def _is_up(happened):
    detail = happened.detail
    return detail.get("type") == "OS::Nova::Server" and detail.get("status") == "COMPLETE"
