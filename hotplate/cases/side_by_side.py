"""Run cases side by side on this host, a process each."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO

from hotplate.cases import process
from hotplate.cases.case_run import LOST_ONCE, after_losses
from hotplate.cases.request import Request
from hotplate.cases.table import Case
from hotplate.children.keeper import Child, Keeper
from hotplate.errors import HostError, Interrupted, MachineLostError
from hotplate.events.log import EventLog
from hotplate.interrupts import Interrupts
from hotplate.machine import admission
from hotplate.report.artifacts import DATABASES, Folder
from hotplate.report.board import Board
from hotplate.settings import Settings
from hotplate.text import clean
from hotplate.timing.deadline import Deadline, DeadlineExceeded
from hotplate.verdict.verdict import Verdict, of_error, one_line

#: The memory of Heat and its neighbours in the process of a case: 155 MiB as measured, and a
#: reserve.
CASE_MIB = 200

#: The longest delay until a signal is noticed that came just before a wait, or from a thread.
TICK_SECONDS = 1.0


def how_many(cases: int, settings: Settings) -> tuple[int, str]:
    """Return how many cases may run side by side on this host, and the reason.

    A booting guest keeps one processor busy.
    """
    cores = len(os.sched_getaffinity(0))
    need = settings.memory + admission.OVERHEAD_MIB + CASE_MIB
    room = int(admission.host_mib() * admission.SHARE) // need
    jobs = max(1, min(cases, cores, room))
    return jobs, f"{cores} processors, and memory for {room} guests of {settings.memory} MiB"


@dataclass(frozen=True)
class CaseEnd:
    """The end of a case.

    :param folder: its folder; None when it got none.
    :param seconds: from the start, that of its process, to its end.
    :param complaint: the other output of its process, such as a traceback.
    """

    case: Case
    verdict: Verdict
    folder: Path | None
    seconds: float
    complaint: str = ""


@dataclass
class _Running:
    case: Case
    child: Child
    output: IO[bytes]
    began: float
    losses: list[str]
    folder: Path | None = None
    verdict: Verdict | None = None


class SideBySide:
    """Runs a number of cases at a time, each in a process that ends with this one.

    :param board: shows their progress.
    :param on_end: called with the end of each.
    :ivar more: whether to start further ones.
    """

    def __init__(
        self,
        request: Request,
        jobs: int,
        *,
        interrupts: Interrupts,
        board: Board,
        on_end: Callable[[CaseEnd], None],
    ) -> None:
        self.more = True
        self._request = request
        self._jobs = jobs
        self._interrupts = interrupts
        self._board = board
        self._on_end = on_end
        self._waiting: deque[tuple[Case, list[str]]] = deque()
        self._running: dict[Connection, _Running] = {}
        self._ending: Deadline | None = None

    def run(self, cases: Sequence[Case]) -> None:
        """Run them; after a signal the running ones finish, and no more are started."""
        self._waiting.extend((case, []) for case in cases)
        with Keeper() as keeper:
            while self._running or (self._waiting and self._goes_on):
                while self._waiting and self._goes_on and len(self._running) < self._jobs:
                    self._start(*self._waiting.popleft(), keeper)
                # None is running when none could be started.
                for channel in self._ready() if self._running else ():
                    self._take(channel)
                self._board.draw()

    @property
    def _goes_on(self) -> bool:
        return self.more and not self._interrupts.came

    def _start(self, case: Case, losses: list[str], keeper: Keeper) -> None:
        began = time.monotonic()
        try:
            channel, child, output = process.start(
                keeper,
                directory=Path.cwd(),
                environment=os.environ,
                request=self._request,
                case=case,
                losses=losses,
            )
        except (HostError, MachineLostError, OSError) as error:
            # For example a full disk, which is no reason to end the running ones.
            self._on_end(self._without_verdict(case, error, None, began, losses=losses))
            return
        self._running[channel] = _Running(case, child, output, began, losses)
        self._board.begin(case.name)

    def _ready(self) -> list[Connection]:
        """Wait for a message of any; return none after a while, for the board."""
        if self._ending is None:
            # Only the first signal raises here; after it the deadline counts.
            try:
                with self._interrupts.allowed():
                    return self._wait(self._board.interval or TICK_SECONDS)
            except Interrupted as error:
                self._end_all(error.number)
        assert self._ending is not None
        ready = self._wait(min(self._ending.left, self._board.interval or process.ENDING_SECONDS))
        # The cases had their time to end by themselves; their channels close when they are killed.
        if not ready and self._ending.passed:
            for each in self._running.values():
                each.child.send_signal(signal.SIGKILL)
            return self._wait(None)
        return ready

    def _wait(self, seconds: float | None) -> list[Connection]:
        ready = wait(list(self._running), seconds)
        return [each for each in ready if isinstance(each, Connection)]

    def _end_all(self, number: int) -> None:
        """Ask all to end, by the signal that ended the command."""
        self._ending = Deadline(process.ENDING_SECONDS, "the cases to end")
        for each in self._running.values():
            each.child.send_signal(number)
            self._board.doing(each.case.name, "ending")

    def _take(self, channel: Connection) -> None:
        running = self._running[channel]
        try:
            what, content = channel.recv()
        # OSError: a process that was killed in the middle of a message.
        except (EOFError, OSError):
            self._end(channel, running)
            return
        match what:
            case "folder":
                running.folder = content
            case "doing":
                self._board.doing(running.case.name, content)
            case "lost":
                running.losses.append(content)
            case "verdict":
                running.verdict = content

    def _end(self, channel: Connection, running: _Running) -> None:
        """Handle the end of a process, which has closed its channel."""
        channel.close()
        del self._running[channel]
        try:
            # The process has closed its channel, so that it is at its very end, or hangs there.
            status = running.child.wait(Deadline(10, "the process of a case to end"))
        except DeadlineExceeded:
            status = running.child.kill()
        complaint = process.tail(running.output)
        case, began = running.case, running.began
        if running.verdict is None:
            why = process.why_without_verdict(status, self._interrupts.came)
            end = self._without_verdict(case, why, running.folder, began, losses=running.losses)
            if isinstance(why, MachineLostError) and self._again(running, str(why)):
                return
        else:
            seconds = time.monotonic() - began
            end = CaseEnd(case, running.verdict, running.folder, seconds)
        # A process ended before it could handle signals prints a long message.
        self._on_end(end if self._ending else replace(end, complaint=complaint))

    def _again(self, running: _Running, why: str) -> bool:
        """Retry a case whose process was lost, if that is allowed."""
        if len(running.losses) >= self._request.retry_lost or not self.more:
            return False
        self._record_loss(running.case, running.losses, why)
        self._waiting.appendleft((running.case, running.losses))
        return True

    def _record_loss(self, case: Case, losses: list[str], why: str) -> None:
        losses.append(one_line(why))
        self._board.end(case.name, [clean(f"{case.name}: {LOST_ONCE} ({losses[-1]})")])

    def _without_verdict(
        self,
        case: Case,
        error: BaseException,
        folder: Path | None,
        began: float,
        *,
        losses: Sequence[str],
    ) -> CaseEnd:
        """Write a verdict for a process that left none."""
        now = time.monotonic()
        where = str(folder or "")
        verdict = of_error(error, case.subject, EventLog(), now=now, artifacts=where)
        verdict = after_losses(verdict, losses)
        if folder is not None:
            left = Folder(folder)
            # The process may have been killed before it wrote the verdict.
            left.write_json("verdict.json", verdict.to_json())
            if not self._request.keep:
                left.remove(DATABASES)
        return CaseEnd(case, verdict, folder, now - began)
