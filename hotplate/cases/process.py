"""A case in a process of its own: its program, and its messages to the command.

Heat is a part of the process that runs a case, so that the failure of one cannot affect another.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Self

from hotplate.cases.case_run import CaseRun
from hotplate.cases.request import Request
from hotplate.cases.table import Case
from hotplate.children.keeper import FIRST_CHILD_FD, Child, Keeper
from hotplate.errors import HotplateError, Interrupted, MachineLostError
from hotplate.events.event import Event
from hotplate.events.log import EventLog
from hotplate.interrupts import Interrupts
from hotplate.output import guarded
from hotplate.verdict.stages import Mark

#: Receives the command's environment, which may be too long for a request to the keeper.
_BEGIN = (
    "import os, sys; from multiprocessing.connection import Connection; "
    f"channel = Connection({FIRST_CHILD_FD}); environment = channel.recv(); "
    "os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment)"
)

_RUN = """
import sys
sys.path.append(sys.argv[1])
from hotplate.interrupts import Interrupts
with Interrupts() as interrupts:
    # An extension in C (PyYAML's) whose import was interrupted cannot be imported again.
    from hotplate.cases import process
    process.main(interrupts)
"""

#: The program of a case. The folder of hotplate may be a link beside another Heat, and is not
#: resolved. It receives the environment on its first descriptor, then the request of the command,
#: the case and its losses. It sends pairs: ``folder`` with its path, once there is one; ``doing``
#: with the present action, in a sentence; ``lost`` with the reason, at each loss of its machine;
#: ``verdict``, when everything but the report is written.
COMMAND = (
    *(sys.executable, "-I", "-S", "-c", _BEGIN),
    *("-P", "-c", _RUN, str(Path(__file__).absolute().parents[2])),
)


class _Relay:
    """Sends a case's progress to the command."""

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
        send(self._channel, ("doing", text))

    def reached(self, mark: Mark, server: str) -> None:
        """Send a stage, with the seconds from power-on."""
        whose = f"{server}: " if server else ""
        self.say(f"{whose}{mark.stage} after {max(0.0, mark.at - self._start):.0f} s")

    def _powered(self, event: Event) -> None:
        if event.kind == "power-on":
            self._start = event.at


#: The most bytes shown of a process's other output, from its end.
MOST_BYTES = 64 * 1024

#: Time for a case to end after a signal, before its process is killed.
ENDING_SECONDS = 60.0


def start(
    keeper: Keeper,
    *,
    directory: Path,
    environment: Mapping[str, str],
    request: Request,
    case: Case,
    losses: Sequence[str],
) -> tuple[Connection, Child, IO[bytes]]:
    """Start the process of a case; return its message channel, the process, and its other output.

    :param keeper: its parent.
    :param directory: its working directory.
    :raises HostError: when it cannot be started.
    :raises MachineLostError: when the keeper is gone.
    :raises OSError: when the host is out of resources.
    """
    ours, theirs = socket.socketpair()
    # Closed here after the start: with our copy open, the end of the process would not show as EOF.
    with theirs, contextlib.ExitStack() as made:
        # Detached, because the Connection closes the descriptor.
        channel: Connection = made.enter_context(Connection(ours.detach()))
        # It has no name, so that nothing stays of it when the command is killed.
        output = made.enter_context(tempfile.TemporaryFile())
        child = keeper.spawn(
            COMMAND,
            directory=directory,
            stderr=Path(f"/proc/self/fd/{output.fileno()}"),
            fds=[theirs.fileno()],
        )
        made.pop_all()
    send(channel, dict(environment))
    send(channel, (request, case, losses))
    return channel, child, output


def tail(output: IO[bytes]) -> str:
    """Return the end of a process's output, and close it."""
    with output:
        output.seek(max(0, os.fstat(output.fileno()).st_size - MOST_BYTES))
        return output.read().decode(errors="replace")


def why_without_verdict(status: int, interrupted: int) -> BaseException:
    """Return the error of a process that ended without a verdict.

    :param status: its exit status, or minus the signal that ended it.
    :param interrupted: the signal that ended the command, 0 when there was none.
    """
    if interrupted:
        return Interrupted(interrupted)
    # A signal from outside, such as the OOM killer's, says nothing about the image.
    if status < 0:
        name = signal.Signals(-status).name
        return MachineLostError(f"the process of the case was ended by {name}", hint="dmesg")
    return HotplateError(f"the process of the case ended with status {status} and no verdict")


def send(channel: Connection, message: object) -> None:
    """Send a message, or drop it when the other end is gone."""
    with contextlib.suppress(OSError):
        channel.send(message)


def main(interrupts: Interrupts) -> None:
    """Run the case that is received."""
    # No child of the case may hold the channel open: its end is the end of the case to the command.
    os.set_inheritable(FIRST_CHILD_FD, False)
    channel: Connection = Connection(FIRST_CHILD_FD)
    with channel, guarded():
        request, case, losses = channel.recv()
        case_run = CaseRun(
            request,
            case,
            interrupts,
            follow=lambda _, events: _Relay(channel, events),
            begun=lambda folder: send(channel, ("folder", folder)),
            losses=losses,
            lost=lambda why: send(channel, ("lost", why)),
        )
        done = case_run.run()
        # The verdict first: an error in the report cannot lose it.
        send(channel, ("verdict", done.verdict))
        case_run.write_report(done)
