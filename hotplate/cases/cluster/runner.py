"""Cases on the workers of a Dask cluster: submitted, watched, retried and collected.

Dask's scheduler decides where a case runs. The result is decided here: each case has one verdict,
the first that arrives, whatever happens to a worker, the scheduler or the connection.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import secrets
import tarfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

from distributed import Client, Future
from tornado.ioloop import IOLoop

from hotplate.cases.case_run import after_losses, nth
from hotplate.cases.cluster import resources, scheduler, task, transfer
from hotplate.cases.cluster.payload import Payloads
from hotplate.cases.cluster.transfer import CaseResult
from hotplate.cases.process import ENDING_SECONDS
from hotplate.cases.request import Request
from hotplate.cases.side_by_side import TICK_SECONDS, CaseEnd, SideBySide
from hotplate.cases.table import Case
from hotplate.errors import HostError, HotplateError, Interrupted, MachineLostError, Outcome
from hotplate.interrupts import Interrupts
from hotplate.report.artifacts import Artifacts
from hotplate.report.board import Board
from hotplate.text import clean
from hotplate.timing.deadline import Deadline

#: Cases submitted beyond those that can run: this number, or as many again if that is more.
AHEAD = 8

#: The most pieces of images that are sent at a time.
PIECES = 16

#: The time between two looks at the workers.
LOOK_SECONDS = 5.0

#: How long no worker may be able to run a case, after one was.
PATIENCE_SECONDS = 60.0


@dataclass(eq=False)
class Submitted:
    """A case without a verdict yet.

    :param began: the time of its first submission; 0 before that.
    :param losses: the reasons of earlier losses, one sentence each.
    :param key: of its task of Dask.
    :param worker: the address of the worker that has started it; "" for none.
    :param result: awaits the result.
    """

    case: Case
    needs: resources.Resources = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)
    key: str = ""
    worker: str = ""
    began: float = 0.0
    result: asyncio.Task[None] | None = None
    artifacts: Artifacts | None = None


class OnCluster(SideBySide):
    """Runs cases on workers instead of this host.

    One coroutine does all of it, and takes the messages and results from one queue.

    :param jobs: the most cases submitted at a time; 0 for as many as the workers can run.
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
        super().__init__(request, jobs, interrupts=interrupts, board=board, on_end=on_end)
        self._address = scheduler.address_of(request.on)
        self._topic = f"hotplate-{secrets.token_hex(8)}"
        self._payloads = Payloads(request, self._topic)
        self._numbers = count()
        self._left: deque[Submitted] = deque()
        self._out: dict[str, Submitted] = {}
        self._queue: asyncio.Queue[Callable[[], None]] = asyncio.Queue()
        self._sending = asyncio.Semaphore(PIECES)
        self._slots = 1
        self._able: list[resources.Resources] = []
        # Both have passed already, so that the first look at the workers is due at once.
        self._look = self._unable = Deadline(0, "a look at the workers")

    @property
    def _unfinished(self) -> bool:
        return bool(self._out or (self._left and self._goes_on))

    def run(self, cases: Sequence[Case]) -> None:
        """Run them; after a signal the running ones finish, and no more are started.

        :raises HostError: when no scheduler can be reached.
        """
        scheduler.hush()
        self._left.extend(map(Submitted, cases))
        with transfer.only_plain_data():
            asyncio.run(self._connect_and_serve())

    async def _connect_and_serve(self) -> None:
        connecting = asyncio.ensure_future(scheduler.connect(self._address))
        # A signal only sets "came", which wakes no coroutine.
        while not connecting.done():
            if self._interrupts.came:
                # The caller gives cases without a verdict one.
                connecting.cancel()
                return
            await asyncio.wait([connecting], timeout=TICK_SECONDS)
        client = await connecting
        try:
            await self._serve(client)
        except HostError as error:
            for each in [*self._out.values(), *self._left]:
                self._end_with(each, error)
            self._left.clear()
        finally:
            await scheduler.leave(client)

    # -- the loop ----------------------------------------------------------------------------------

    async def _serve(self, client: Client) -> None:
        self._subscribe(client)
        while self._unfinished:
            if self._look.passed:
                await self._look_at_workers(client)
            await self._submit(client)
            seconds = self._board.interval or TICK_SECONDS
            try:
                take = await asyncio.wait_for(self._queue.get(), seconds if self._out else 0)
            except TimeoutError:
                pass
            else:
                take()
            if not self.more:
                # Only those that have not begun: the results of running ones are still wanted.
                for each in [each for each in self._out.values() if not each.worker]:
                    self._withdraw(each)
            if self._interrupts.came and self._ending is None:
                self._end_everywhere(client, self._interrupts.came)
            if self._ending is not None and self._ending.passed:
                for each in list(self._out.values()):
                    self._end_with(each, Interrupted(self._interrupts.came))
            self._board.draw()

    def _subscribe(self, client: Client) -> None:
        # An event of Dask's is a pair: its time and the message. The queue serialises all work.
        client.subscribe_topic(
            self._topic,
            lambda event: self._queue.put_nowait(partial(self._take_event, client, event[1])),
        )

    async def _submit(self, client: Client) -> None:
        most = self._jobs or self._slots + max(AHEAD, self._slots)
        while self._goes_on and self._left and len(self._out) < most:
            each = self._left.popleft()
            each.began = each.began or time.monotonic()
            try:
                # In a thread: an image may have to be hashed.
                payload = await asyncio.to_thread(self._payloads.pack, each.case)
                settings = each.case.settings_from(self._request.settings)
                each.needs = resources.needs_of(each.case.image, settings)
            except (HotplateError, OSError) as error:
                self._end_with(each, error)
                continue
            each.key, each.worker = f"{self._topic}-{next(self._numbers)}", ""
            self._out[each.key] = each
            future: Future[bytes] = client.submit(
                task.run_case, payload, key=each.key, resources=dict(each.needs), pure=False
            )
            each.result = asyncio.ensure_future(self._await_result(client, each.key, future))
            if resources.missing(each.needs, self._able):
                # No known worker can run it: look now, not after LOOK_SECONDS.
                self._look.end()

    async def _await_result(self, client: Client, key: str, future: Future[bytes]) -> None:
        try:
            result: CaseResult | Exception = CaseResult.from_bytes(await future)
        # The cancellation of this task is a BaseException, and passes.
        except Exception as error:
            result = error
        finally:
            # Dask forgets a task that nobody waits for, and its worker ends the case.
            future.release()
        self._queue.put_nowait(partial(self._take_result, client, key, result))

    def _withdraw(self, each: Submitted) -> None:
        """Give up a case's task, whatever its state."""
        self._out.pop(each.key, None)
        if each.result is not None:
            each.result.cancel()

    # -- workers -----------------------------------------------------------------------------------

    async def _look_at_workers(self, client: Client) -> None:
        """Find how many cases can run, which have lost their worker, and which no worker can run.

        :raises HostError: see :func:`~hotplate.cases.cluster.scheduler.check`.
        """
        self._look = Deadline(LOOK_SECONDS, "a look at the workers")
        scheduler.check(client, self._address)
        if client.status == "connecting":
            self._board.say([f'the connection to "{self._address}" is lost; trying again'])
            self._look = Deadline(PATIENCE_SECONDS / 2, "a look at the workers")
            return
        try:
            assert client.scheduler is not None
            asked = client.scheduler.identity(n_workers=-1)
            workers = (await asyncio.wait_for(asked, PATIENCE_SECONDS))["workers"]
        # TimeoutError is an OSError. Dask will notice as well that the scheduler is gone.
        except OSError:
            return
        self._slots = max(1, sum(each["nthreads"] for each in workers.values()))
        for each in list(self._out.values()):
            # A result that has arrived counts, also when its worker left in the meantime.
            arrived = each.result is not None and each.result.done()
            if each.worker and each.worker not in workers and not arrived:
                self._withdraw(each)
                self._try_again(each, f'the worker "{each.worker}" has gone')
        self._able = [dict(each["resources"]) for each in workers.values()]
        stuck = {
            each: why
            for each in self._out.values()
            if not each.worker and (why := resources.missing(each.needs, self._able))
        }
        if stuck and not workers:
            self._board.say([f'"{self._address}" has no worker: hotplate worker {self._address}'])
            # Repeat the line, but not at each look.
            self._look = Deadline(PATIENCE_SECONDS / 2, "a look at the workers")
        elif self._out and not stuck:
            self._unable = Deadline(PATIENCE_SECONDS, "a worker that can run a case")
        elif self._unable.passed:
            for each, why in stuck.items():
                error = HostError(
                    f'no worker of "{self._address}" can run this case: {why}',
                    hint="hotplate worker, on a host that has it; hotplate doctor says what a host "
                    "has",
                )
                self._end_with(each, error)

    # -- events and results ------------------------------------------------------------------------

    def _take_event(self, client: Client, content: object) -> None:
        # A worker can send anything.
        match content:
            case {"worker": str(by), "want": str(file), "image": str(image), "offset": int(offset)}:
                IOLoop.current().add_callback(self._send_piece, client, by, image, file, offset)
            case {"worker": str(by), "begun": str(key)} if key in self._out:
                each = self._out[key]
                # A second start means that Dask runs the case again, because the worker is gone.
                if each.worker and not self._lost(each, f'the worker "{each.worker}" has gone'):
                    return
                each.worker = by
                self._board.begin(each.case.name)
                self._board.doing(each.case.name, f"runs on {by}")

    async def _send_piece(
        self, client: Client, worker: str, image: str, file: str, offset: int
    ) -> None:
        async with self._sending:
            data = b""
            # An empty piece says that the file has none there any more.
            with contextlib.suppress(OSError):
                data = await asyncio.to_thread(self._payloads.piece, image, file, offset)
            await client.run(task.add_piece, image, file, offset, data, workers=[worker])

    def _take_result(self, client: Client, key: str, result: CaseResult | Exception) -> None:
        each = self._out.get(key)
        if each is None:
            return
        self._withdraw(each)
        # Dask's error for futures of a lost connection is a concurrent.futures.CancelledError.
        if isinstance(result, OSError | concurrent.futures.CancelledError):
            self._take_back(client, each)
        elif isinstance(result, CaseResult):
            self._take_verdict(each, result)
        elif isinstance(result, HotplateError):
            self._end_with(each, result)
        # Dask gives up a task with which several workers died ("allowed-failures", 3 by default).
        elif (text := transfer.exception_text(result)).startswith("KilledWorker"):
            self._try_again(each, "its workers died, one after the other")
        else:
            self._end_with(each, HotplateError(f"the task of the case ended by {clean(text)}"))

    def _take_verdict(self, each: Submitted, result: CaseResult) -> None:
        """Process a verdict; a lost machine is final only after too many losses."""
        outcome, reasons = result.verdict.outcome, result.verdict.reasons
        if outcome is Outcome.LOST and self._may_lose(each):
            # The files of a lost try are for people only; without them the case is tried again as
            # well.
            with contextlib.suppress(HostError, OSError, tarfile.TarError):
                artifacts, name = self._artifacts(each), f"{nth(len(each.losses) + 1)}-try"
                artifacts.write_json(f"{name}.json", result.verdict.to_json())
                _unpack(result, artifacts.folder / name)
            self._try_again(each, clean(reasons[-1]) if reasons else "no reason")
        # A signal ended the worker, and not this command.
        elif outcome is Outcome.INTERRUPTED and not self._interrupts.came:
            self._try_again(each, f'the worker "{result.worker}" was ended')
        else:
            self._end_by(each, result)

    # -- losses ------------------------------------------------------------------------------------

    def _may_lose(self, each: Submitted) -> bool:
        return len(each.losses) < self._request.retry_lost and self._goes_on

    def _lost(self, each: Submitted, why: str) -> bool:
        """Record a loss; return False when it was one too many, and the case has its verdict."""
        if not self._may_lose(each):
            self._end_with(each, MachineLostError(why))
            return False
        self._record_loss(each.case, each.losses, why)
        return True

    def _try_again(self, each: Submitted, why: str) -> None:
        if self._lost(each, why):
            self._left.appendleft(each)

    def _take_back(self, client: Client, each: Submitted) -> None:
        """Submit a case to the scheduler's successor; one that had started is lost."""
        # Dask connects again, and then sends what is sent meanwhile, but subscribes to nothing.
        self._subscribe(client)
        if self._interrupts.came:
            self._end_with(each, Interrupted(self._interrupts.came))
        elif each.worker:
            self._try_again(each, "the connection to the scheduler was lost")
        else:
            self._left.appendleft(each)
        # A restarted scheduler does not have all workers at once.
        self._look.end()
        self._unable = Deadline(PATIENCE_SECONDS, "a worker that can run a case")

    # -- the end -----------------------------------------------------------------------------------

    def _end_everywhere(self, client: Client, number: int) -> None:
        """Ask all to end, by the signal that ended the command; waiting ones are not started."""
        # Longer than on the worker, which kills the process of the case after ENDING_SECONDS.
        self._ending = Deadline(ENDING_SECONDS + 10, "the cases to end")
        for each in list(self._out.values()):
            if each.worker:
                self._board.doing(each.case.name, "ending")
            else:
                self._end_with(each, Interrupted(number))
        # A hanging worker does not answer, and is not waited for.
        IOLoop.current().add_callback(
            client.run, task.end_cases, self._topic, number, on_error="ignore"
        )

    def _end_by(self, each: Submitted, result: CaseResult) -> None:
        """Give a case that ran its verdict, with the names of this host, and its files."""
        complaint, case, folder = result.complaint, each.case, None
        try:
            folder = self._artifacts(each).folder
            _unpack(result, folder)
        except (HostError, OSError, tarfile.TarError) as error:
            complaint += f"hotplate test: {error}\n"
        subject = replace(
            result.verdict.subject,
            image=case.subject.image,
            template=case.template.source,
            case=case.name,
            facts={**result.verdict.subject.facts, "worker": result.worker},
        )
        verdict = replace(result.verdict, subject=subject, artifacts=str(folder or ""))
        verdict = after_losses(verdict, each.losses)
        if each.artifacts is not None:
            each.artifacts.write_json("verdict.json", verdict.to_json())
            each.artifacts.point()
        self._on_end(CaseEnd(case, verdict, folder, time.monotonic() - each.began, complaint))

    def _end_with(self, each: Submitted, error: BaseException) -> None:
        """Give a case without a result its verdict."""
        self._withdraw(each)
        folder: Path | None = None
        with contextlib.suppress(HostError):
            folder = self._artifacts(each).folder
        began = each.began or time.monotonic()
        end = self._without_verdict(each.case, error, folder, began, losses=each.losses)
        if each.artifacts is not None:
            each.artifacts.point()
        self._on_end(end)

    def _artifacts(self, each: Submitted) -> Artifacts:
        """Return the folder of a case, which all of its tries share."""
        if each.artifacts is None:
            base = self._request.settings.artifacts.absolute()
            each.artifacts = Artifacts(base, each.case.name)
        return each.artifacts


def _unpack(result: CaseResult, folder: Path) -> None:
    """Write the files of a result; its report has the paths of this host then."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not result.archive:
        return
    transfer.unpack(result.archive, folder)
    report = folder / "report.html"
    if result.folder and report.is_file():
        text = report.read_bytes()
        report.write_bytes(text.replace(result.folder.encode(), str(folder).encode()))
