"""The progress reported while an image boots for the first time."""

from __future__ import annotations

import configparser
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotplate.errors import HostError, ImageError, MachineLostError
from hotplate.events.event import Event
from hotplate.events.log import EventLog
from hotplate.settings import Datasource, MachineChoice
from hotplate.testbed import first_boot
from hotplate.testbed.first_boot import CpuError, Narrator

ROOT = Path(__file__).resolve().parents[2]
LINE = Event("console", "line", "web", {"text": "[    0.000000] Linux version 6.1\x1b[2J"})
METADATA = Event(
    "metadata",
    "request",
    "web",
    {"method": "GET", "path": "/openstack/latest/meta_data.json", "status": 200},
)
POWER = Event("machine", "power-on", "web")


@pytest.fixture
def lines(monkeypatch):
    """The reported lines, by a clock that advances ten seconds at each reading."""
    clock = count(0, 10)
    monkeypatch.setattr(first_boot.time, "monotonic", lambda: float(next(clock)))
    return []


def test_each_step_is_reported_once_and_in_order(lines):
    narrator = Narrator(lines.append)
    for event in (POWER, LINE, LINE, METADATA, METADATA):
        narrator.see(event)
    assert [words.partition(" s  ")[2] for words in lines] == [
        "the console talks",
        "the network is up",
        "metadata was served",
    ]


def test_skipped_step_is_not_reported_later(lines):
    narrator = Narrator(lines.append)
    for event in (METADATA, LINE):
        narrator.see(event)
    assert [words.partition(" s  ")[2] for words in lines] == ["the network is up"]


def test_console_is_quoted_without_escapes_when_no_step_comes(lines):
    narrator = Narrator(lines.append)
    narrator.see(LINE)
    for _ in range(6):
        narrator.remind()
    waiting = [words for words in lines if "waiting until the network is up" in words]
    assert waiting
    assert all('the console: "[    0.000000] Linux version 6.1"' in words for words in waiting)
    # Not at every call.
    assert len(waiting) < 4


# -- a guest that stops ---------------------------------------------------------------------------

PANIC = "[    0.06] Kernel panic - not syncing: "


def line(text: str) -> Event:
    return Event("console", "line", "web", {"text": text})


@pytest.mark.parametrize(
    ("events", "error", "why"),
    [
        (
            [line(f"{PANIC}VFS: Unable to mount root fs on unknown-block(0,0)")],
            ImageError,
            "its agent never polled Heat: the console shows: the kernel could not mount the root",
        ),
        (
            [line("Fatal glibc error: CPU does not support x86-64-v3")],
            HostError,
            "the image was booted, but the console shows: the image's programs need a CPU",
        ),
        ([Event("machine", "panic", "web")], ImageError, "the guest's kernel panicked"),
        (
            [Event("machine", "exit", "web", {"status": 0, "reason": "guest-shutdown"})],
            ImageError,
            "its agent never polled Heat: the machine ended (guest-shutdown)",
        ),
        (
            [line(f"{PANIC}IO-APIC + timer doesn't work!  Boot with apic=debug")],
            MachineLostError,
            "the image was booted, but the console shows: the machine's timer did not tick",
        ),
        (
            [
                line("[    4.03] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI"),
                line(f"{PANIC}Fatal exception in interrupt"),
            ],
            MachineLostError,
            "the image was booted, but the console shows: the kernel panicked",
        ),
        (
            # It continued after that, and lacks a file of the image.
            [
                line("[    4.03] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI"),
                line("ALERT!  /dev/nope does not exist.  Dropping to a shell!"),
            ],
            ImageError,
            "the console shows: the initrd did not find the root file system",
        ),
        (
            [Event("machine", "exit", "web", {"status": -9, "reason": "lost"})],
            MachineLostError,
            "the image was booted, but the machine was lost",
        ),
        (
            [Event("machine", "disk-error", "web", {"stopped": True, "message": "EIO"})],
            HostError,
            "QEMU could not write its disk: EIO",
        ),
        (
            [Event("machine", "disk-error", "web", {"stopped": True, "full": True})],
            HostError,
            "QEMU could not write its disk: the host's disk is full",
        ),
    ],
)
def test_stopped_guest_ends_the_wait_with_a_reason(events, error, why):
    """At once: a wait for the agent of a panicked guest used to take minutes."""
    heard: queue.SimpleQueue[Event] = queue.SimpleQueue()
    # Events of another server say nothing about this one.
    for event in (POWER, *(replace(each, server="other") for each in events), *events):
        heard.put(event)
    testbed = SimpleNamespace(
        settings=SimpleNamespace(patience=600.0, cpu="auto"),
        events=[POWER, *events],
        directory="first-boot",
        image=SimpleNamespace(path="a.qcow2"),
    )
    with pytest.raises(error) as raised:
        first_boot._wait_for(first_boot.POLLING, testbed, heard, Narrator(lambda _: None))
    assert why in raised.value.message
    assert heard.empty()


@pytest.mark.parametrize(
    ("cpu", "error", "hint"),
    [("qemu64", CpuError, "--cpu x86-64-v2"), ("host", ImageError, "hotplate test a.qcow2")],
)
def test_panic_for_the_cpu_names_the_next_level(cpu, error, hint):
    """The event of QEMU comes by another channel, here before the line of the console is heard."""
    panic = Event("machine", "panic", "web")
    heard: queue.SimpleQueue[Event] = queue.SimpleQueue()
    for event in (POWER, panic):
        heard.put(event)
    on = Event("machine", "power-on", "web", {"cpu": cpu})
    testbed = SimpleNamespace(
        settings=SimpleNamespace(patience=600.0, cpu="auto"),
        events=[on, line(f"{PANIC}Attempted to kill init! exitcode=0x00000004"), panic],
        directory="first-boot",
        image=SimpleNamespace(path="a.qcow2"),
    )
    with pytest.raises(error) as raised:
        first_boot._wait_for(first_boot.POLLING, testbed, heard, Narrator(lambda _: None))
    assert raised.value.hint == hint


class PlainTestbed:
    """A testbed whose server adds the given events when its stack is created."""

    def __init__(self, datasource: Datasource, events: list[Event]) -> None:
        self.settings = SimpleNamespace(patience=600.0, datasource=datasource, cpu="auto")
        self.settings.machine = MachineChoice.QEMU
        self.image = SimpleNamespace(path="a.qcow2")
        self.directory = "first-boot"
        self.events = EventLog()
        self.happening = events
        self.templates: list[dict[str, Any]] = []
        self.cloud = SimpleNamespace(heat=lambda: SimpleNamespace(stacks=self))
        self.compute = SimpleNamespace(servers={"web": self})
        self.commands: list[str] = []

    def create(self, *, stack_name: str, template: dict[str, Any]) -> None:
        del stack_name
        self.templates.append(template)
        for event in (POWER, *self.happening):
            self.events._append(event)

    def shell(self, *, seconds: float) -> PlainTestbed:
        assert seconds == self.settings.patience
        return self

    def run(self, command: str) -> SimpleNamespace:
        self.commands.append(command)
        return SimpleNamespace(rc=0 if len(self.commands) > 1 else 1)


@pytest.mark.parametrize(
    ("datasource", "event"), [(Datasource.OPENSTACK, METADATA), (Datasource.CONFIG_DRIVE, LINE)]
)
def test_server_without_agent_is_ready_when_its_boot_has_ended(datasource, event):
    """It never polls; when it reads from a drive, only its console is seen."""
    testbed = PlainTestbed(datasource, [event])
    lines: list[str] = []
    assert first_boot.boot_without_agent(testbed, say=lines.append) is testbed
    properties = testbed.templates[0]["resources"]["server"]["properties"]
    assert properties["user_data_format"] == "RAW"
    assert testbed.commands == [first_boot.WITHOUT_AGENT] * 2
    assert lines[-1].endswith("its boot has ended")


def test_container_whose_image_reads_no_metadata_is_not_waited_for():
    """Its shell is the harness's own, and depends on no program that asks for the metadata."""
    testbed = PlainTestbed(Datasource.OPENSTACK, [LINE])
    testbed.settings.patience = 0.1
    with pytest.raises(ImageError, match="it never asked for its metadata"):
        first_boot.boot_without_agent(testbed, reader=False)
    testbed.settings.machine = MachineChoice.CONTAINER
    assert first_boot.boot_without_agent(testbed, reader=False) is testbed
    with pytest.raises(ImageError, match="it never asked for its metadata"):
        first_boot.boot_without_agent(testbed, reader=True)


def test_panic_of_a_server_without_agent_ends_the_wait():
    testbed = PlainTestbed(Datasource.OPENSTACK, [Event("machine", "panic", "web")])
    with pytest.raises(ImageError, match="it never asked for its metadata: the guest's kernel"):
        first_boot.boot_without_agent(testbed)


@pytest.mark.parametrize(
    ("state", "status"), [("running", 0), ("degraded", 0), ("starting", 1), ("", 0)]
)
def test_boot_has_ended_when_systemd_reports_it(tmp_path, state, status):
    if state:
        (program := tmp_path / "systemctl").write_text(f"#!/bin/sh\necho {state}\n")
        program.chmod(0o755)
    command = ["/bin/sh", "-c", first_boot.WITHOUT_AGENT]
    assert subprocess.run(command, env={"PATH": str(tmp_path)}).returncode == status


# -- between two polls ----------------------------------------------------------------------------


class PlayedServer:
    """A server whose agent polls while its shell runs a command, so many times."""

    def __init__(self, events: EventLog, polls: int) -> None:
        self.events = events
        self.polls = polls
        self.commands: list[str] = []
        self.spec = SimpleNamespace(id="web")

    def shell(self) -> PlayedServer:
        return self

    def run(self, command: str) -> None:
        self.commands.append(command)
        if self.polls:
            self.polls -= 1
            self.events._append(POLL)


POLL = Event(
    "cfn",
    "request",
    "web",
    {"method": "GET", "path": "/v1/?Action=DescribeStackResource", "status": 200},
)


@pytest.fixture
def polling() -> Iterator[EventLog]:
    """The events of an agent that polls all the time, and of another server."""
    events = EventLog()
    ended = threading.Event()

    def poll() -> None:
        # A wait sees a poll; a look at the events since sees only those of the other server.
        while not ended.wait(0.01):
            events._append(replace(POLL, server="other"))
            if waits.is_set():
                waits.clear()
                events._append(POLL)

    waits = threading.Event()
    wait = events.wait

    def waited(*arguments: Any, **named: Any) -> Event | None:
        waits.set()
        return wait(*arguments, **named)

    events.wait = waited  # type: ignore[method-assign]
    thread = threading.Thread(target=poll)
    thread.start()
    yield events
    ended.set()
    thread.join()


def test_agent_is_idle_once_each_document_was_used(tmp_path):
    """os-refresh-config's lock is free before the agent has started it, too."""
    stub = tmp_path / "bin" / "systemctl"
    stub.parent.mkdir()
    stub.write_text("#!/bin/sh\n")
    stub.chmod(0o755)
    (tmp_path / "cfn.json.orig").touch()
    idle = first_boot.IDLE.replace(first_boot.CACHE, str(tmp_path)).replace("/run/", f"{tmp_path}/")
    environ = {**os.environ, "PATH": f"{stub.parent}:{os.environ['PATH']}"}
    with subprocess.Popen(["sh", "-c", idle], env=environ) as waiting:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.3)
        (tmp_path / "cfn.json.last").touch()
        assert waiting.wait(60) == 0


@pytest.mark.parametrize(("polls", "looks"), [(0, 1), (2, 3)])
def test_agent_is_caught_between_two_polls(polling, polls, looks):
    server = PlayedServer(polling, polls)
    assert first_boot.wait_between_polls(polling, server)
    assert server.commands == ["sleep 0.1"] * looks


def test_agent_polling_without_pause_is_accepted(polling):
    server = PlayedServer(polling, 1000)
    assert not first_boot.wait_between_polls(polling, server)
    assert len(server.commands) == first_boot.LOOKS


def test_silent_agent_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(first_boot, "MAX_POLL_SECONDS", 0.05)
    server = PlayedServer(EventLog(), 0)
    assert not first_boot.wait_between_polls(server.events, server)
    assert server.commands == []


def test_agent_of_a_started_container_is_waited_for_as_long_as_the_host_is_slow(monkeypatch):
    """At the end of the usual time the deadline is stretched, and the poll is still to come."""
    events, waited, ran = EventLog(), [], []

    def wait(*_: object, **__: object) -> Event | None:
        waited.append(len(ran))
        return POLL if len(waited) == 3 else None

    monkeypatch.setattr(events, "wait", wait)
    spec = SimpleNamespace(id="web", name="web")
    shell = SimpleNamespace(run=lambda command, **_: ran.append(command))
    first_boot.wait_for_agent(events, SimpleNamespace(spec=spec, shell=lambda: shell), since=0)
    assert waited == [0, 0, 0]
    assert ran == [first_boot.IDLE]


def test_agent_of_a_saved_server_gets_the_polling_interval():
    """By the configuration file that the agent renders; its own minimum is a second."""
    template = ROOT / "elements/os-collect-config/os-apply-config/etc/os-collect-config.conf"
    metadata = first_boot.METADATA
    conf = subprocess.run(
        [sys.executable, "-IS", template],
        input=json.dumps(metadata),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    options = configparser.ConfigParser()
    options.read_string(conf)
    sys.path.insert(0, str(ROOT / "hooks"))
    try:
        pace = importlib.import_module("heat_agent.collect.pace")
    finally:
        sys.path.pop(0)
    shortest = options.getfloat("DEFAULT", "min_polling_interval", fallback=1.0)
    rounds = pace.Pace(shortest, options.getfloat("DEFAULT", "polling_interval"))
    pauses = [rounds.after(fresh=each, troubled=False) for each in (True, False, False)]
    assert pauses == [first_boot.POLLING_SECONDS] * 3
