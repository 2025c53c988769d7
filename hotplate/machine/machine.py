"""One server's machine, of any kind: power, console, channels, links.

The kinds are :class:`~hotplate.machine.qemu.QemuMachine` and
:class:`~hotplate.container.machine.ContainerMachine`.  A kind that cannot do something leaves it
out of its capabilities, and its method raises :class:`~hotplate.errors.UsageError`.
"""

from __future__ import annotations

import contextlib
import socket
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NoReturn, Self

from hotplate.errors import UsageError
from hotplate.events.kinds import EventFacts, LinkChange
from hotplate.events.log import EventLog
from hotplate.machine.console import Console
from hotplate.machine.wiring import Cable, Wiring
from hotplate.timing.deadline import Deadline


class Capability(Enum):
    """An ability of a server's machine that not every kind has; the value completes "needs ..."."""

    POWER = "a machine whose power can be cut"
    LINKS = "a machine whose network cables can be pulled, slowed down and parted"
    STATES = "a machine whose state can be saved"
    SCREEN = "a machine with a screen"
    MONITOR = "QEMU's monitor"
    KERNEL = "a machine with a kernel of its own"
    DISK = "a machine with a disk of its own"


@dataclass(frozen=True)
class Exit:
    """How a machine ended.

    :param status: the exit status of its program, or minus the signal that ended it.
    :param reason: ``guest-shutdown``, ``guest-panic``, ``host-qmp-quit``,
        ``power-cut`` (:meth:`Machine.kill`), ``not-started`` when its program ended before the
        machine was on, ``lost`` when it failed later or another process killed it.
    """

    status: int
    reason: str


@dataclass(frozen=True)
class Work:
    """The work of a thread.

    :param ran: seconds on a processor.
    :param waited: seconds for which it could have run, and another ran.
    """

    ran: float = 0.0
    waited: float = 0.0

    def since(self, before: Work) -> Work:
        """Return the work since then."""
        return Work(self.ran - before.ran, self.waited - before.waited)


class Machine(ABC):
    """A machine that can be switched on, watched, cut off and switched on again.

    A context manager: leaving it cuts the power.

    :cvar kind: one word, as the setting ``machine`` has it.
    :cvar capabilities: the abilities of this kind.
    :ivar name: a short name, for messages; that of its folder.
    :ivar wiring: its connections.
    :ivar directory: for its console and its messages.
    :ivar events: gets ``machine/power-on``, ``power-off``, ``exit``, ``reset`` and the console's
        lines.
    :ivar server_id: goes into these events.
    :ivar disk: the disk that it writes to, to be read from outside; None for a machine without.
    """

    kind: str
    capabilities: frozenset[Capability]
    name: str
    wiring: Wiring
    directory: Path
    events: EventLog
    server_id: str
    console: Console
    disk: Path | None = None
    #: The program's number of each interface, in the guest's order; and of those without a cable.
    _cards: Collection[int]
    _pulled: set[int]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    # -- power ---------------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Switch the machine on.

        :raises HostError: when the host lacks something or refuses.
        :raises MachineLostError: when it ended before it was on.
        """

    @abstractmethod
    def kill(self) -> None:
        """Cut the power; do nothing when the machine is off."""

    @abstractmethod
    def shutdown(self, deadline: Deadline) -> Exit:
        """Press the power button and wait for the guest to switch itself off.

        :raises DeadlineExceeded: when it still runs then.
        """

    @abstractmethod
    def pause(self) -> None:
        """Stop the guest's processors."""

    @abstractmethod
    def resume(self) -> None:
        """Let the guest's processors run again."""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """Return the process id of the machine's program; another one after each start.

        None when the machine is off.
        """

    @property
    def running(self) -> bool:
        """Return whether the machine is on."""
        return self.pid is not None

    @abstractmethod
    def work(self) -> Mapping[str, Work]:
        """Return the work of each thread of the machine so far."""

    @abstractmethod
    def facts(self) -> dict[str, str]:
        """Return facts about it for the reader of a verdict, by name."""

    @abstractmethod
    def resident_mib(self) -> float:
        """Return the memory that it takes of the host in MiB, 0 when it is off."""

    # -- connections -----------------------------------------------------------------------------

    @property
    def shell_by_metadata(self) -> bool:
        """Return True when only served metadata tells the guest of the root shell."""
        return False

    @property
    @abstractmethod
    def shell_channel(self) -> socket.socket:
        """Return the connection to the guest's root shell; new after each start.

        :raises MachineLostError: when the machine is off.
        """

    def set_link(self, *, up: bool, cards: Iterable[int] | None = None) -> None:
        """Plug network cables in or out.

        :param cards: the numbers of the interfaces; None for all of them.
        """
        numbers = [*self._cards]
        for number in numbers if cards is None else [numbers[place] for place in cards]:
            self._set_card(number, up=up)
            (self._pulled.discard if up else self._pulled.add)(number)
        self._emit(LinkChange(up=not self._pulled))

    @abstractmethod
    def _set_card(self, number: int, *, up: bool) -> None:
        """Plug the cable of one interface in or out, by the number that the program has for it."""

    @abstractmethod
    def attach(self, cable: Cable) -> None:
        """Add a network interface to the running machine, after the others.

        The guest sees a new device; whether it uses it is up to the guest.

        :raises UsageError: when this machine cannot add one while it runs.
        :raises MachineLostError: when it is off.
        """

    @abstractmethod
    def detach(self, place: int, deadline: Deadline) -> None:
        """Remove a network interface from the running machine.

        :param place: number of the interface, from 0, in the guest's order.
        :raises UsageError: when this machine cannot remove one while it runs.
        :raises DeadlineExceeded: when the guest has not released it; it may still do so later.
        :raises MachineLostError: when the machine is off.
        """

    # -- abilities of some kinds -----------------------------------------------------------------

    def screenshot(self, path: Path) -> None:
        """Write a PNG of the guest's screen; needs a machine that was made with one."""
        del path
        self._cannot(Capability.SCREEN)

    def monitor(self, command: str) -> str:
        """Return the answer of QEMU's monitor for people to a command."""
        del command
        self._cannot(Capability.MONITOR)

    def with_screen(self, directory: Path, events: EventLog) -> Machine:
        """Return the same machine with a screen, which is switched off.

        :param directory: an empty one, for its files.
        :param events: gets its events.
        """
        del directory, events
        self._cannot(Capability.SCREEN)

    def write_script(self) -> Path | None:
        """Write a script that starts the same machine by hand; return its path, if there is one."""
        return None

    def _emit(self, facts: EventFacts) -> None:
        self.events.add(facts, server=self.server_id)

    def _cannot(self, needed: Capability) -> NoReturn:
        raise UsageError(
            f'that needs {needed.value}, and "{self.name}" is a {self.kind}',
            hint="--machine qemu",
        )


def work_of(processes: Iterable[int]) -> dict[str, Work]:
    """Return the work of each thread of some processes so far.

    Source: the kernel's sched-stats.rst.
    """
    work = {}
    for pid in processes:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError, ValueError):
                # A thread may end meanwhile.
                ran, waited, _ = path.read_text().split()
                work[path.parent.name] = Work(int(ran) / 1e9, int(waited) / 1e9)
    return work
