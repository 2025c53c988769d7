"""All facts of one server's run, gathered once from the event log for the rules.

systemd's console cuts a long line in its middle, at an ellipsis, to fit in 80 columns: ``Failed to
start cloud-config.serv…tings specified in cloud-config.`` is about cloud-config.service.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from hotplate.events import classify, console_patterns
from hotplate.events.event import Event
from hotplate.events.kinds import (
    DiskError,
    GuestFlood,
    GuestProbe,
    InterfaceChange,
    LinkChange,
    MachineExit,
    NetworkAnswer,
    ServerBoot,
    StackResource,
    UserDataParts,
)
from hotplate.verdict import health
from hotplate.verdict.boots import Boots
from hotplate.verdict.deployment_track import DeploymentTrack
from hotplate.verdict.health import Health
from hotplate.verdict.hook_output import HookOutput
from hotplate.verdict.stages import Stage
from hotplate.verdict.tracker import Track

#: Matches the cut in a long line of systemd's; three dots where the locale has no ellipsis.
CUT = re.compile(r"\u2026|\.\.\.")

#: Heat's reason of a resource that waits for a hook of the environment.
_PAUSED = re.compile(r"paused until Hook \S+ is cleared")

_NAME = re.compile(
    r"(?<![\w@\\:.-])[\w@\\:-][\w@\\:.-]*"
    r"\.(?:service|socket|target|mount|automount|swap|device|timer|path|slice|scope)(?![\w.-]|\u2026)"
)
#: Units that are considered even if their full names were not seen.
COMMON = (*health.UNITS, "systemd-networkd-wait-online.service")


def names_in(text: str) -> list[str]:
    """Return the full names of units in a line."""
    return _NAME.findall(text)


def whole(shown: str, names: Iterable[str]) -> str:
    """Return the unit's name that systemd shows as ``NAME - Description``, cut or not.

    >>> whole("cloud-config.serv…tings specified in cloud-config.", ["cloud-config.service"])
    'cloud-config.service'

    :param shown: the words behind "Failed to start" or "Starting".
    :param names: the full names seen; when not exactly one fits, ``shown`` is returned as it is.
    """
    name, described, _ = shown.partition(" - ")
    begins, *rest = CUT.split(name, maxsplit=1)
    if not rest:
        return name
    ends = rest[0] if described else ""
    fitting = {each for each in names if each.startswith(begins) and each.endswith(ends)}
    return fitting.pop() if len(fitting) == 1 and begins else shown


CFN_INIT_DATA = "cfn-init-data"


@dataclass
class Facts:
    """The input of the rules.

    :param missing: the first stage that was not reached, None when all were.
    :param track: the deployment or awaited signal that failed or is stuck there ("stuck" below),
        None when none is.
    :param user_data_parts: the file names of the user data's parts; None when unknown.
    :param addresses: those that Neutron gave the server's ports; none without such ports.
    :param hook_outputs: the output of each failed deployment, by the id of its config.
    :param floods: the limits of the harness that the guest exceeded, with a sentence for each.
    :param silent_network: a sentence when the network is not up at the end of the boot, else "".
    :param answer: the guest's to the question after the missing stage, as a sentence; "" for none.
    :param link_up: False while the guest's network link is cut.
    """

    missing: Stage | None
    track: Track | None
    undelivered: list[str]
    stack_status: str
    stack_reason: str
    now: float
    powered: float | None = None
    lines: list[str] = field(default_factory=list)
    findings: dict[str, console_patterns.ConsoleFinding] = field(default_factory=dict)
    metadata: list[Event] = field(default_factory=list)
    polls: list[Event] = field(default_factory=list)
    signals: list[Event] = field(default_factory=list)
    requests: list[Event] = field(default_factory=list)
    refused: list[Event] = field(default_factory=list)
    stack: list[Event] = field(default_factory=list)
    markers: list[classify.Marker] = field(default_factory=list)
    probes: dict[str, str] = field(default_factory=dict)
    hook_outputs: dict[str, HookOutput] = field(default_factory=dict)
    user_data_parts: list[str] | None = None
    addresses: list[str] = field(default_factory=list)
    exit: MachineExit | None = None
    panic: Event | None = None
    disk_error: DiskError | None = None
    floods: dict[str, str] = field(default_factory=dict)
    silent_network: str = ""
    answer: str = ""
    link_up: bool = True
    boots: Boots = field(default_factory=Boots)
    last_event: Event | None = None

    @property
    def failed(self) -> bool:
        """True when Heat reports the stack as failed, or a hook failed unknown to Heat."""
        return self.stack_status.endswith("FAILED") or (self.unheard and bool(self.track_failed))

    @property
    def unheard(self) -> bool:
        """True when Heat wants no signal of the stuck deployment."""
        return isinstance(self.track, DeploymentTrack) and self.track.silent

    @property
    def stopped(self) -> bool:
        """True when the console shows that the guest never continues, and the stack is not done."""
        fatal = any(each.pattern.fatal for each in self.findings.values())
        return fatal and self.stack_status.endswith("IN_PROGRESS")

    @property
    def paused(self) -> StackResource | None:
        """The resource at which Heat waits until a hook of the environment is cleared."""
        if not self.stack_status.endswith("IN_PROGRESS"):
            return None
        last = {
            (change.stack_id, change.resource): change
            for change in filter(None, map(StackResource.of, self.stack))
            # Heat's words when it goes down while it waits.
            if not change.reason.startswith("Failure occurred while waiting")
        }
        return next((each for each in last.values() if _PAUSED.search(each.reason)), None)

    @property
    def track_failed(self) -> str:
        """The reason why the stuck deployment failed, "" when it did not."""
        return self.track.failed if isinstance(self.track, DeploymentTrack) else ""

    @property
    def words(self) -> list[HookOutput]:
        """The output of the stuck deployment if it failed, else that of all failed ones."""
        own = self.hook_outputs.get(self.track.id) if self.track else None
        return [own] if own else [*self.hook_outputs.values()]

    def marker(self, word: str) -> classify.Marker | None:
        """Return the last marker of a kind, of the stuck deployment if there is one."""
        markers = [each for each in self._own_markers if each.event == word]
        return markers[-1] if markers else None

    @property
    def _own_markers(self) -> list[classify.Marker]:
        wanted = self.track.id if self.track else ""
        return [each for each in self.markers if not wanted or each.id == wanted]

    @property
    def finished(self) -> classify.Marker | None:
        """The end of the stuck deployment's hook: the runner's marker, else what Heat was sent.

        The runner of heat-agents writes no markers.
        """
        if (marker := self.marker("finished")) is not None:
            return marker
        track = self.track
        sent = self.hook_outputs.get(track.id) if isinstance(track, DeploymentTrack) else None
        if track is None or sent is None or sent.status is None:
            return None
        return classify.Marker("finished", track.id, track.group, track.label, sent.status)

    def finding(self, *names: str) -> console_patterns.ConsoleFinding | None:
        """Return the first of the named console findings that was seen."""
        return next((self.findings[name] for name in names if name in self.findings), None)

    @property
    def health(self) -> Health:
        """The guest's own answer, or the state of its disk where it could not be asked."""
        return _health(self.probes.get("health") or self.probes.get("disk") or "")

    def read(self, events: Iterable[Event], server: str) -> None:
        """Take the facts of a server from a run's events."""
        for event in events:
            if event.source == "stack":
                self.stack.append(event)
            elif classify.concerns(event, server):
                _take(self, event)
        self.findings = {each.pattern.name: each for each in console_patterns.scan(self.lines)}

    @property
    def got_user_data(self) -> bool:
        """True when cloud-init, or its substitute in the image, asked for the user data.

        The agent may ask for other metadata by itself, which is no sign of cloud-init.
        """
        return any(classify.is_user_data(event) for event in self.metadata)

    @property
    def without_cloud_init(self) -> bool:
        """True when the image is known to get its metadata without cloud-init."""
        state = self.health.unit("cloud-init.service", "LoadState")
        if state:
            return state == "not-found"
        return any("heat-config-bootstrap: " in line for line in self.lines)

    @property
    def has_output(self) -> bool:
        """True when the stuck deployment sent its output."""
        return bool(self.track and self.track.id in self.hook_outputs)

    def agent(self, key: str) -> str:
        """Return a property of the agent's unit, "" when the guest itself did not answer.

        The stage that the guest did not reach decides then, not an agent missing on its disk.
        """
        return _health(self.probes.get("health", "")).unit(health.AGENT, key)

    def whole_unit(self, shown: str) -> str:
        """Return the full name of a unit that systemd's console has shortened."""
        names = {*COMMON, *self.health.units}
        for text in (*self.lines, *self.probes.values()):
            names.update(names_in(text))
        return whole(shown, names)

    def search(self, pattern: str) -> re.Match[str] | None:
        """Return the first match of a pattern, None without any.

        The texts are the output in :attr:`words`, the runner's reasons and Heat's reason.
        """
        reasons = [each.reason for each in self._own_markers]
        for text in [*map(str, self.words), *reasons, self.stack_reason]:
            if match := re.search(pattern, text):
                return match
        return None

    def log_line(self, pattern: str, *probes: str) -> str:
        """Return the last line of a probe's answer that matches, "" when none does."""
        for probe in probes:
            for line in reversed(self.probes.get(probe, "").splitlines()):
                if re.search(pattern, line):
                    return line.strip()
        return ""


@lru_cache(maxsize=4)
def _health(text: str) -> Health:
    """Parse an answer once: each of some sixty rules asks for it."""
    return Health.read(text)


def _take(facts: Facts, event: Event) -> None:
    text = classify.console_text(event)
    if event.source not in ("guest", "harness", "nova") and (text is None or text.strip()):
        # Answers to the harness's own questions, and its notes, are no sign of life; an empty line
        # of the console says nothing.
        facts.last_event = event
    if text is not None:
        if marker := classify.marker_in(text):
            facts.markers.append(marker)
        facts.lines.append(text)
    elif event.source == "machine":
        _take_machine(facts, event)
    elif given_ports := ServerBoot.of(event) or InterfaceChange.of(event):
        facts.addresses = _addresses(given_ports.ports)
    elif answer := GuestProbe.of(event):
        facts.probes[answer.probe] = answer.text
    elif (given := UserDataParts.of(event)) and given.parts is not None:
        facts.user_data_parts = given.parts
    elif flood := GuestFlood.of(event):
        facts.floods.setdefault(flood.fault, flood.text)
    elif answer_of_network := NetworkAnswer.of(event):
        silent = answer_of_network.up is False
        facts.silent_network = answer_of_network.text if silent else ""
    elif event.kind == "refused":
        facts.refused.append(event)
    elif classify.is_request(event):
        facts.requests.append(event)
        if event.source == "metadata":
            facts.metadata.append(event)
        elif classify.is_signal(event):
            facts.signals.append(event)
        elif classify.is_poll(event):
            facts.polls.append(event)


def _addresses(ports: Iterable[Mapping[str, object]]) -> list[str]:
    lists = [each.get("addresses") for each in ports]
    return [str(address) for given in lists if isinstance(given, list) for address in given]


def _take_machine(facts: Facts, event: Event) -> None:
    if event.kind == "power-on":
        facts.exit = facts.panic = facts.disk_error = None
    elif ended := MachineExit.of(event):
        facts.exit = ended
    elif event.kind == "panic":
        facts.panic = event
    elif (error := DiskError.of(event)) and error.stopped:
        facts.disk_error = error
    elif link := LinkChange.of(event):
        facts.link_up = link.up
