"""A case in a process of its own: what of it runs there, and what it says to the command.

Heat is a part of the process that runs a case: whatever becomes of one, no other is touched by it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hotplate.children.keeper import FIRST_CHILD_FD, Child, Keeper
from hotplate.cli.case_run import CaseRun, import_what_writes
from hotplate.cli.cases import Case
from hotplate.cli.interrupts import Interrupts
from hotplate.cli.output import guarded
from hotplate.errors import HotplateError, Interrupted, MachineLostError

if TYPE_CHECKING:
    from hotplate.events.event import Event
    from hotplate.events.log import EventLog
    from hotplate.verdict.stages import Mark, Stage
    from hotplate.verdict.verdict import Verdict

_BEGIN = (
    "import os, sys; from multiprocessing.connection import Connection; "
    f"channel = Connection({FIRST_CHILD_FD}); environment = channel.recv(); "
    "os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment)"
)
"""Takes the environment of the command, which may be too long for a request to the keeper."""

_RUN = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from hotplate.cli import case_process; case_process.main()"
)

COMMAND = (
    *(sys.executable, "-I", "-S", "-c", _BEGIN),
    *("-P", "-c", _RUN, str(Path(__file__).resolve().parents[2])),
)
"""The program of a case.  It is sent the environment on its first descriptor, then the words of the
command, the case and its losses; it sends what is below."""


@dataclass(frozen=True)
class Begun:
    """The case has a folder."""

    folder: Path


@dataclass(frozen=True)
class Doing:
    """What the case is doing now, in a sentence."""

    text: str


@dataclass(frozen=True)
class Lost:
    """Its machine was lost; it may be tried again."""

    why: str


@dataclass(frozen=True)
class Ended:
    """The case has its verdict; all but the report is written."""

    verdict: Verdict


class _Relay:
    """Sends what a case does to the command."""

    def __init__(self, channel: Connection, events: EventLog) -> None:
        self._channel = channel
        self._start = time.monotonic()
        events.subscribe(self._powered)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        """Send a sentence."""
        send(self._channel, Doing(text))

    def reached(self, mark: Mark, server: str) -> None:
        """Send a stage, with the seconds from power-on."""
        whose = f"{server}: " if server else ""
        self.say(f"{whose}{mark.stage} after {max(0.0, mark.at - self._start):.0f} s")

    def _powered(self, event: Event) -> None:
        if event.kind == "power-on":
            self._start = event.at


MOST_BYTES = 64 * 1024
"""As much of what a process wrote besides is shown, the last of it."""

ENDING_SECONDS = 60.0
"""How long a case has for its end after a signal, before its process is killed."""


def start(
    keeper: Keeper,
    *,
    directory: Path,
    scratch: Path,
    environment: Mapping[str, str],
    args: argparse.Namespace,
    case: Case,
    losses: Sequence[str],
) -> tuple[Connection, Child]:
    """Start the process of a case; returns the channel on which it says what it does, and itself.

    :param keeper: whose child it is.
    :param directory: its working directory.
    :param scratch: where what it writes besides goes, which :func:`tail` takes.
    :raises HostError: when it cannot be started.
    :raises MachineLostError: when the keeper is gone.
    :raises OSError: when the host has no more to give.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        channel = Connection(ours.detach())
        try:
            handle, output = tempfile.mkstemp(dir=scratch)
            os.close(handle)
            child = keeper.spawn(
                COMMAND, directory=directory, stderr=Path(output), fds=[theirs.fileno()]
            )
        except BaseException:
            channel.close()
            raise
    send(channel, dict(environment))
    send(channel, (args, case, losses))
    return channel, child


def tail(file: Path) -> str:
    """Return the end of what a process wrote, and remove the file."""
    with file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - MOST_BYTES))
        text = stream.read().decode(errors="replace")
    file.unlink()
    return text


def why_without_verdict(status: int, interrupted: int) -> BaseException:
    """Return why a process ended without a verdict.

    :param status: its exit status, or minus the signal that ended it.
    :param interrupted: the signal that the command was ended by, 0 when it was not.
    """
    if interrupted:
        return Interrupted(interrupted)
    if status < 0:
        name = signal.Signals(-status).name
        return MachineLostError(f"the process of the case was ended by {name}", hint="dmesg")
    return HotplateError(f"the process of the case ended with status {status} and no verdict")


def send(channel: Connection, message: object) -> None:
    """Send a message; who has gone cannot be told anything."""
    with contextlib.suppress(OSError):
        channel.send(message)


def main() -> None:
    """Run the case that is sent."""
    os.set_inheritable(FIRST_CHILD_FD, False)
    channel: Connection = Connection(FIRST_CHILD_FD)
    with channel, guarded(), Interrupts() as interrupts:
        import_what_writes()
        args, case, losses = channel.recv()
        case_run = _case_run(channel, args, case, interrupts, losses)
        done = case_run.run()
        send(channel, Ended(done.verdict))
        case_run.write_report(done)


def _case_run(
    channel: Connection,
    args: argparse.Namespace,
    case: Case,
    interrupts: Interrupts,
    losses: Sequence[str],
) -> CaseRun:
    """Return the run of a case that sends what happens."""

    def follow(_: Mapping[Stage, float], events: EventLog) -> _Relay:
        return _Relay(channel, events)

    return CaseRun(
        args,
        case,
        interrupts,
        follow=follow,
        begun=lambda folder: send(channel, Begun(folder)),
        losses=losses,
        lost=lambda why: send(channel, Lost(why)),
    )
