"""A played guest: a real Trial and a real Heat, with a stub in place of QEMU.

It writes a guest's console lines and talks to the harness over the real wire: it fetches its
metadata, polls as its user data configures, "runs" the deployments from Heat in the runner's
order, and signals with the notifier that images carry.  The fixture ``play`` is a
:class:`Stage`::

    def test_it(play):
        played = play(TEMPLATE, Guest(agent=False))
        assert played.verdict.diagnosis.stage == "agent polled"
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import tiny_disk

sys.path.insert(0, str(Path(__file__).with_name("cloud")))
import wire_guest

from hotplate.errors import MachineLostError
from hotplate.events import expected
from hotplate.events.kinds import MachineExit, PowerOn
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.machine.machine import Work
from hotplate.machine.qemu import QemuMachine
from hotplate.machine.wiring import Wiring
from hotplate.settings import Settings
from hotplate.stacks import template as templates
from hotplate.stacks.template import Template
from hotplate.testbed import qemu_maker
from hotplate.timing.deadline import GuestDeadline
from hotplate.trial import network_check, rest, watch
from hotplate.trial.trial import Trial
from hotplate.verdict.stages import Mark
from hotplate.verdict.verdict import Verdict

LOG = logging.getLogger(__name__)

POLL_SECONDS = 0.15

#: The patience with guests of which nothing is to come: Heat itself is quicker.
SILENT_SECONDS = 1.0
MEMORY_MIB = 128

#: Name of the folder, in a server's folder, with the files on the guest's disk.
PLAYED_DISK = "played-disk"

#: A hook's answer: outputs, ``deploy_stdout``, ``deploy_stderr``, ``deploy_status_code``.
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Guest:
    """The behaviour of a guest; the default is a good image.

    :param seconds: duration of its boot.
    :param boots: the image's init starts.
    :param network: the guest gets an address.
    :param metadata: cloud-init finds its data source.
    :param agent: the agent is enabled.
    :param writes: the runner writes its progress on the console.
    :param hangs: resources whose hooks never end.
    :param rejects: groups without a hook.
    :param answers: the hook's answer by resource, where it is not plain success.
    :param on_user_data: action of the user data, called with the guest's wire to the cloud.
    """

    seconds: float = 0.1
    boots: bool = True
    network: bool = True
    metadata: bool = True
    agent: bool = True
    writes: bool = True
    hangs: tuple[str, ...] = ()
    rejects: tuple[str, ...] = ()
    answers: Mapping[str, Answer] = field(default_factory=dict)
    on_user_data: Callable[[wire_guest.Guest], None] = lambda wire: None


class Wire(wire_guest.Guest):
    """The connection of one played guest to the listeners of its wiring."""

    def __init__(self, server_id: str, listeners: Mapping[int, socket.socket]) -> None:
        self.ports = {port: each.getsockname()[1] for port, each in listeners.items()}
        self.server_id = server_id


class PlayedWiring(Wiring):
    """Listeners on loopback, without a process."""

    name = "played"

    def __enter__(self) -> PlayedWiring:
        self._open()
        return self

    def close(self) -> None:
        for listener in self.listeners.values():
            listener.close()

    def _open(self) -> None:
        self.reason = "the guest is played"
        self.listeners = {port: wire_guest.listen() for port in self.ports}
        self.local = Wire("", self.listeners)

    def netdev(self) -> str:
        return "user"

    def connect(self, port: int, *, seconds: float = 5.0) -> socket.socket:
        raise NotImplementedError


class PlayedMachine(QemuMachine):
    """A machine whose power switch starts a thread that plays the guest."""

    role: Callable[[str], Guest] = staticmethod(lambda name: Guest())

    def start(self, *, incoming: Path | None = None) -> None:
        del incoming
        self._off = threading.Event()
        self._hangs = self._polled = False
        self._done: set[str] = set()
        self._thread = threading.Thread(target=self._live, name=f"guest-{self.config.name}")
        self._emit(PowerOn())
        self._thread.start()

    def kill(self) -> None:
        if self.running:
            self._off.set()
            self._thread.join()
            self._emit(MachineExit(-9, "power-cut"))

    @property
    def running(self) -> bool:
        return hasattr(self, "_off") and not self._off.is_set()

    @property
    def pid(self) -> int | None:
        return None

    @property
    def silent(self) -> bool:
        """True once nothing more is to come of the guest."""
        return hasattr(self, "_thread") and (self._hangs or not self._thread.is_alive())

    def has_done(self, deployments: set[str]) -> bool:
        """Return True when it polls, and has run the deployments with these ids."""
        return hasattr(self, "_thread") and self._polled and deployments <= self._done

    def work(self) -> dict[str, Work]:
        """Return that of an idle machine once nothing more is to come of the guest."""
        return {} if self._thread.is_alive() else {"played": Work(0.0, 0.0)}

    def _channel(self, name: str) -> socket.socket:
        raise MachineLostError(f'a played guest has no channel "{name}"')

    # -- the guest -------------------------------------------------------------------------------

    def _live(self) -> None:
        self.guest = type(self).role(self.config.name)
        self.wire = self.wiring.local
        try:
            self._boot()
        except OSError:
            # A cut link, a power cut and the end of the test all look like this to the guest.
            LOG.warning("%s ends", self._thread.name, exc_info=True)

    def console_says(self, *lines: str) -> None:
        for line in lines:
            self.events.emit("console", "line", server=self.server_id, text=line)

    def _boot(self) -> None:
        guest = self.guest
        self.console_says("[    0.000000] Linux version 6.1.0-28-cloud-amd64 (debian-kernel)")
        if self._off.wait(guest.seconds) or not guest.boots:
            return
        self.console_says("Welcome to Debian GNU/Linux 12 (bookworm)!")
        if not guest.network:
            return
        self.console_says("ci-info: |  eth0  | True | 169.254.169.15 | 255.255.255.0 | global |")
        if not guest.metadata:
            return
        self.wire.get("/openstack/latest/meta_data.json")
        guest.on_user_data(self.wire)
        sources = self._sources()
        self.console_says("Cloud-init v. 22.4.2 finished at Thu, 01 Jan 2026", "debian login: ")
        while guest.agent and sources and not self._off.wait(POLL_SECONDS):
            for source, section in sources.items():
                self._take(self._poll(source, section))
            self._polled = True

    def _sources(self) -> dict[str, dict[str, Any]]:
        answer = self.wire.get("/latest/user-data")
        if answer.status_code != 200 or b"cfn-init-data" not in answer.content:
            return {}
        sections = self.wire.cfn_init_data().get("os-collect-config") or {}
        return {
            name: sections[name]
            for name in ("cfn", "heat", "request", "zaqar")
            if any((sections.get(name) or {}).values())
        }

    def _poll(self, source: str, section: dict[str, Any]) -> list[dict[str, Any]]:
        if source != "cfn":
            state = self.directory / PLAYED_DISK / f"agent-{source}"
            return wire_guest.collect(self.wire, state, section, source).deployments(source)
        answer = wire_guest.describe(self.wire, section)
        if answer.status_code != 200:
            return []
        path = "DescribeStackResourceResult/StackResourceDetail/Metadata"
        metadata = json.loads(ET.fromstring(answer.text).findtext(path) or "{}")
        listed: list[dict[str, Any]] = metadata.get("deployments") or []
        return listed

    def _take(self, deployments: list[dict[str, Any]]) -> None:
        """Play one pass of the runner: receive all deployments, then run each in turn."""
        new = [each for each in deployments if each["id"] not in self._done]
        for each in new:
            self._mark("received", each)
        for each in new:
            if self._off.is_set() or not self._run(each):
                return
            self._done.add(each["id"])

    def _run(self, deployment: dict[str, Any]) -> bool:
        inputs = {each["name"]: each.get("value") for each in deployment["inputs"]}
        resource = str(inputs["deploy_resource_name"])
        if deployment["group"] in self.guest.rejects:
            self._mark("rejected", deployment, reason="there is no hook for it")
            answer: Answer = {"deploy_status_code": -1}
        else:
            self._mark("started", deployment)
            if resource in self.guest.hangs:
                self._hangs = True
                self._off.wait()
                return False
            answer = self.guest.answers.get(resource, {"deploy_status_code": 0})
            self._mark("finished", deployment, status=answer["deploy_status_code"])
        sent = wire_guest.notify(
            self.wire, self.directory / PLAYED_DISK / "signals", deployment, dict(answer)
        )
        if sent.returncode == 0:
            # The runner writes this also when Heat wants no signal.
            self._mark("signalled", deployment)
        return True

    def _mark(self, word: str, deployment: Mapping[str, Any], **facts: Any) -> None:
        if not self.guest.writes:
            return
        line = f"heat-config: {word} id={deployment['id']} group={deployment['group']}"
        tail = "".join(f" {key}={json.dumps(value)}" for key, value in facts.items())
        self.console_says(f"[   40.1] {line} name={json.dumps(deployment['name'])}{tail}")


class Patience(GuestDeadline):
    """The patience of a run, which ends soon once all its guests are silent."""

    def __init__(self, seconds: float, what: str, silent: Callable[[], bool]) -> None:
        super().__init__(seconds, what)
        self._silent = silent
        self._rest = GuestDeadline(SILENT_SECONDS, what)

    @property
    def left(self) -> float:
        return min(super().left, self._rest.left) if self._silent() else super().left

    def extend(self, seconds: float) -> None:
        super().extend(seconds)
        self._rest.extend(SILENT_SECONDS)


@dataclass(frozen=True)
class Played:
    """The result of a play."""

    verdict: Verdict
    events: EventLog
    folder: Path
    #: The progress lines.
    seen: list[str]


class Stage:
    """Runs templates on played guests."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._monkeypatch = monkeypatch
        self._count = 0
        monkeypatch.setattr(qemu_maker, "QemuMachine", PlayedMachine)
        monkeypatch.setattr(qemu_maker.wiring, "choose", _choose)
        # A played guest has no shell, so only its requests prove its network.
        monkeypatch.setattr(network_check, "QUIET_SECONDS", 0.2)
        # It is known when one is at rest, and need not be looked at for long.
        for module in (rest, watch):
            monkeypatch.setattr(module, "LOOK_SECONDS", 0.5)
        self.image = Image.open(tiny_disk.make(directory / "played.raw"))

    def __call__(
        self,
        template: Template | Mapping[str, Any] | Path,
        guest: Guest | Callable[[str], Guest] | None = None,
        *,
        patience: float = 20.0,
        limit: float = 120.0,
        deployments: int | None = None,
        **trial: Any,
    ) -> Played:
        """Test a template on played guests.

        :param guest: the behaviour of each server, or a function from the server's name to it.
        :param patience: seconds without news; a run that ends by itself does not wait for them,
            so that a busy host does not matter.
        :param limit: seconds in all; they have passed when a hook is waited for in silence.
        :param deployments: their number, where nothing more is to come once Heat has served all
            and the guests that poll have run theirs. Heat may take long for each.
        """
        self.play_as(guest)
        self._count += 1
        folder = self._directory / f"run-{self._count}"
        folder.mkdir(mode=0o700)
        events = EventLog()
        seen: list[str] = []

        def say(text: str) -> None:
            seen.append(text)
            if "which is at work" in text:
                # A hook that never ends is waited for until the limit, which passes now.
                run._watch._limit.end()

        def silent() -> bool:
            machines = [each.machine for each in run.testbed.servers]
            # Heat may be about to make another one of those that the template has.
            wanted = str(run.template.template).count("'OS::Nova::Server'")
            if len(machines) < max(wanted, 1):
                return False
            if deployments is None:
                return all(each.silent for each in machines)
            served: dict[str, set[str]] = {}
            for each in events:
                ids = {one.id for one in expected.deployments(each) or ()}
                served.setdefault(each.server, set()).update(ids)
            return sum(map(len, served.values())) >= deployments and all(
                each.silent or each.has_done(served.get(each.server_id, set())) for each in machines
            )

        def deadline(seconds: float, what: str) -> GuestDeadline:
            news = what == "anything new"
            return Patience(seconds, what, silent) if news else GuestDeadline(seconds, what)

        self._monkeypatch.setattr(watch, "GuestDeadline", deadline)

        def reached(mark: Mark, server: str) -> None:
            seen.append(f"{server}: {mark.stage}" if server else str(mark.stage))

        given = {
            "patience": patience,
            "limit": limit,
            "memory": MEMORY_MIB,
            "accelerator": "tcg",
            # Any value would do, as no wiring is made.
            "wiring": "namespace",
            "cache": self._directory / "cache",
        }
        settings = Settings.load(given, environ={}, directory=folder)
        with Trial(
            self.image,
            _template(template),
            settings=settings,
            folder=folder,
            events=events,
            say=say,
            on_reached=reached,
            **trial,
        ) as run:
            verdict = run.judge()
        return Played(verdict, events, folder, seen)

    def play_as(self, guest: Guest | Callable[[str], Guest] | None) -> None:
        """Set the behaviour of the servers from now on; see :meth:`__call__`."""
        role = guest if callable(guest) else lambda _: guest or Guest()
        self._monkeypatch.setattr(PlayedMachine, "role", staticmethod(role))


def _template(given: Template | Mapping[str, Any] | Path) -> Template:
    if isinstance(given, Template):
        return given
    if isinstance(given, Path):
        return templates.load(given)
    return Template(source="a test", template=given)


@contextlib.contextmanager
def _choose(ports: Any, *, wanted: str = "") -> Iterator[Wiring]:
    del wanted
    with PlayedWiring(ports) as wiring:
        yield wiring
