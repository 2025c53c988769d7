"""The kinds of events: one class for each, with its facts as fields.

The emitter of an event makes one of these, and a reader asks the class for it, so the type
checker knows the names and the types of a kind's facts::

    events.add(MachineExit(status=0, reason="guest-shutdown"), server=server_id)

    if (exit := MachineExit.of(event)) is not None and exit.reason == "lost":
        ...

In an :class:`~hotplate.events.event.Event`, and in ``timeline.json``, they are a map of JSON
types.  A fact that is None is omitted there, and a missing one has the field's default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from hotplate.events.event import Event

GUEST_SERVICES = frozenset({"metadata", "cfn", "heat", "keystone", "swift", "zaqar"})
#: Services for Heat and the host's clients, out of reach of guests.
HOST_SERVICES = frozenset({"glance", "neutron", "nova"})


@dataclass(frozen=True, slots=True)
class EventFacts:
    """The facts of one kind of event.

    :cvar KIND: the word for the kind.
    :cvar SOURCES: the rooms or services that have such events; ``add`` takes the only one.
    """

    KIND: ClassVar[str]
    SOURCES: ClassVar[frozenset[str]]

    @classmethod
    def of(cls, event: Event) -> Self | None:
        """Return the facts of an event of this kind, None for any other event."""
        if event.kind != cls.KIND or event.source not in cls.SOURCES:
            return None
        # The decorator sets __match_args__ to the names of the fields.
        names: tuple[str, ...] = cls.__match_args__
        made: Any = cls
        facts: Self = made(**{key: each for key, each in event.detail.items() if key in names})
        return facts

    def detail(self) -> Mapping[str, object]:
        """Return the facts that are not None, by name."""
        names: tuple[str, ...] = self.__match_args__
        facts = {name: getattr(self, name) for name in names}
        return {name: value for name, value in facts.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ServiceRequest(EventFacts):
    """A request to a service, and its answer.

    :param status: of HTTP, or of a frame of Zaqar's websocket.
    :param seconds: until the answer was made.
    :param side: ``guest`` or ``host``.
    :param action: Heat's CFN API's, and Zaqar's over a websocket.
    :param fault: the kind of the planted fault that it met.
    """

    KIND = "request"
    SOURCES = GUEST_SERVICES | HOST_SERVICES
    method: str = ""
    path: str | None = None
    status: int | None = None
    seconds: float | None = None
    side: str | None = None
    action: str | None = None
    StackName: str | None = None
    LogicalResourceId: str | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class StackResource(EventFacts):
    """Heat acted on a resource.

    :param stack: the stack's name, and ``stack_id`` its id.
    :param label: the resource and its parents.
    :param action: Heat's word, such as ``CREATE``, and ``status``, such as ``COMPLETE``.
    """

    KIND = "resource"
    SOURCES = frozenset({"stack"})
    stack: str = ""
    stack_id: str = ""
    resource: str = ""
    label: str = ""
    type: str = ""
    action: str = ""
    status: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _OfMachine(EventFacts):
    SOURCES = frozenset({"machine"})


@dataclass(frozen=True, slots=True)
class PowerOn(_OfMachine):
    """A machine was started, ``restored`` from a saved state or not.

    :param machine: its kind, ``qemu`` or ``container``.
    :param cpu: QEMU's CPU model; "" for other machines.
    :param seed: the folder in the guest with the files of a drive; "" for a real drive, or none.
    """

    KIND = "power-on"
    pid: int = 0
    restored: bool = False
    machine: str = "qemu"
    cpu: str = ""
    seed: str = ""


@dataclass(frozen=True, slots=True)
class PowerOff(_OfMachine):
    """A machine switches itself off, or is switched off."""

    KIND = "power-off"
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LinkChange(_OfMachine):
    """A cable of a machine was pulled or plugged in; ``up`` when none is pulled now."""

    KIND = "link"
    up: bool = True


@dataclass(frozen=True, slots=True)
class LinkShape(_OfMachine):
    """A machine's link to a network was made slow or lossy; with neither it is restored.

    :param delay: seconds, each way.
    :param loss: a share, 0 to 1, each way.
    """

    KIND = "link-shape"
    network: str = ""
    delay: float = 0.0
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkPart(_OfMachine):
    """A machine was parted from another on a network, or rejoined.

    :param other: the name of the other's server.
    """

    KIND = "link-part"
    network: str = ""
    other: str = ""
    parted: bool = False


@dataclass(frozen=True, slots=True)
class MachineReset(_OfMachine):
    """A machine was reset.

    :param by_guest: True when the guest requested it.
    """

    KIND = "reset"
    reason: str = ""
    by_guest: bool = False


@dataclass(frozen=True, slots=True)
class GuestPanic(_OfMachine):
    """A guest's kernel panicked; ``action`` is QEMU's reaction."""

    KIND = "panic"
    action: str = ""


@dataclass(frozen=True, slots=True)
class DiskError(_OfMachine):
    """A read or write of a guest's disk failed.

    :param full: the host's disk is full.
    :param stopped: QEMU has stopped the guest for it.
    :param message: QEMU's reason.
    """

    KIND = "disk-error"
    full: bool = False
    stopped: bool = False
    message: str = ""


@dataclass(frozen=True, slots=True)
class MachineExit(_OfMachine):
    """QEMU has ended.

    :param status: its exit status.
    :param reason: ``lost`` when nobody had ended it.
    :param message: QEMU's last words then.
    """

    KIND = "exit"
    status: int = 0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ConsoleLine(EventFacts):
    """A line that a guest wrote on its console."""

    KIND = "line"
    SOURCES = frozenset({"console"})
    text: str = ""


@dataclass(frozen=True, slots=True)
class GuestProbe(EventFacts):
    """A guest's answer to a probe, and the exit status of the command."""

    KIND = "probe"
    SOURCES = frozenset({"guest"})
    probe: str = ""
    status: int = 0
    text: str = ""


@dataclass(frozen=True, slots=True)
class GuestJournal(EventFacts):
    """The lines of a guest's journal about failures."""

    KIND = "journal"
    SOURCES = frozenset({"guest"})
    lines: tuple[str, ...] | list[str] = ()


@dataclass(frozen=True, slots=True)
class GuestLogin(EventFacts):
    """A guest accepted an ssh login.

    :param user: the user name.
    :param key_pair: by the key of the server's key pair, which a guest has from its metadata.
    """

    KIND = "login"
    SOURCES = frozenset({"guest"})
    user: str = ""
    key_pair: bool = False


@dataclass(frozen=True, slots=True)
class ServerState(EventFacts):
    """A remote cloud shows a new state of a server; ``status`` is Nova's word for it."""

    KIND = "status"
    SOURCES = frozenset({"nova"})
    status: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ServerBoot(EventFacts):
    """Heat requested a server.

    :param name: of the server, with the ``stack`` and ``resource`` in Heat that it belongs to.
    :param ports: for each the ``network_id``, the name of the ``network``, the ``cidr`` of its
        subnet, and the ``addresses``.
    """

    KIND = "boot"
    SOURCES = frozenset({"nova"})
    name: str = ""
    stack: str | None = None
    resource: str | None = None
    user_data_bytes: int = 0
    ports: tuple[dict[str, object], ...] | list[dict[str, object]] = ()


@dataclass(frozen=True, slots=True)
class InterfaceChange(EventFacts):
    """A server got or lost an interface.

    :param ports: all of its ports now, in the form of :class:`ServerBoot`.
    """

    KIND = "interfaces"
    SOURCES = frozenset({"nova"})
    ports: tuple[dict[str, object], ...] | list[dict[str, object]] = ()


@dataclass(frozen=True, slots=True)
class _OfHarness(EventFacts):
    SOURCES = frozenset({"harness"})


@dataclass(frozen=True, slots=True)
class BootImage(_OfHarness):
    """The image that a server boots, where there are several.

    :param name: its name in ``--image NAME=PATH``.
    """

    KIND = "image"
    name: str = ""


@dataclass(frozen=True, slots=True)
class RouterChange(_OfHarness):
    """The routers between the networks have changed.

    :param routers: all of them now: for each its ``name``, and of its ``interfaces`` the
        ``network_id`` and the ``address``.
    """

    KIND = "routers"
    routers: list[dict[str, object]] | None = None


@dataclass(frozen=True, slots=True)
class UserDataParts(_OfHarness):
    """The contents of a server's user data; see :mod:`hotplate.events.expected`.

    :param not_a_script: the text that Heat's user data would run as a script is none.
    """

    KIND = "user-data"
    parts: list[str] | None = None
    sources: list[str] | None = None
    handles: list[str] | None = None
    not_a_script: bool | None = None


@dataclass(frozen=True, slots=True)
class ServedDeployments(_OfHarness):
    """All deployments that Heat serves to a server; see :mod:`hotplate.events.expected`."""

    KIND = "expected"
    deployments: tuple[dict[str, str], ...] | list[dict[str, str]] = ()


@dataclass(frozen=True, slots=True)
class GuestFlood(_OfHarness):
    """A guest exceeded a limit; ``fault`` is the kind, ``text`` a sentence."""

    KIND = "flood"
    fault: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class ServerWaiting(_OfHarness):
    """A server waits for a resource of the host; ``text`` is a sentence."""

    KIND = "waiting"
    name: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class StartFault(_OfHarness):
    """A server could not be started; ``outcome`` attributes the fault."""

    KIND = "fault"
    outcome: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class BootEnd(_OfHarness):
    """A guest's boot has ended; ``text`` gives the evidence where no console shows it."""

    KIND = "boot-end"
    text: str = ""


@dataclass(frozen=True, slots=True)
class NetworkAnswer(_OfHarness):
    """The result of the check, after the boot, whether a guest's network is up.

    :param up: True or False; None when the check could show neither.
    :param text: a sentence without its full stop.
    """

    KIND = "network"
    up: bool | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class GuestAnswer(_OfHarness):
    """A guest's answer about one stage that is asked of it after its boot.

    :param stage: the stage's name.
    :param reached: True or False; None where the image has nothing that could reach it, or where
        nothing shows it.
    :param text: the proof, or the reason, as a sentence without its full stop.
    """

    KIND = "answer"
    stage: str = ""
    reached: bool | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class InternalFault(_OfHarness):
    """A thread of hotplate's own failed.

    :param thread: its name.
    :param ends: True when it ends all waits; False when it only failed one request.
    """

    KIND = "internal-fault"
    thread: str = ""
    message: str = ""
    ends: bool = True
