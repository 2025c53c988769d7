"""Cases on the workers of a Dask cluster: submitting, watching, retrying, and results.

Dask's scheduler decides where a case runs, and runs it again when its worker is gone. The result
is decided here: each case has one verdict, the first that arrives, whatever happens to a worker,
the scheduler or the connection.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from distributed import Client, Future

from hotplate.cases.case_run import LOST_ONCE
from hotplate.cases.cluster import scheduler
from hotplate.cases.cluster.brought import Brought
from hotplate.cases.cluster.case_on_worker import end_run, run_job
from hotplate.cases.cluster.client import ConnectionLost, connected
from hotplate.cases.cluster.homecoming import Homecoming
from hotplate.cases.cluster.image_sender import ImageSender
from hotplate.cases.cluster.inbox import CaseEvent, Inbox, TaskEnd
from hotplate.cases.cluster.jobs import topic_of
from hotplate.cases.cluster.parcels import Parcels, Pending
from hotplate.cases.cluster.plain import exception_in
from hotplate.cases.cluster.workers import Workers
from hotplate.cases.process import ENDING_SECONDS
from hotplate.cases.request import Request
from hotplate.cases.side_by_side import CaseEnd
from hotplate.cases.table import Case
from hotplate.errors import (
    HostError,
    HotplateError,
    Interrupted,
    MachineLostError,
    Outcome,
)
from hotplate.image.image_set import ImageSet
from hotplate.interrupts import Interrupts
from hotplate.text import clean
from hotplate.timing.deadline import Deadline

if TYPE_CHECKING:
    from hotplate.report.board import Board

HELPERS = 16
"""The number of threads that fetch results and send images."""

AGAIN_SECONDS = 300.0
"""How long to wait for a scheduler that is gone in the middle of a command."""

AHEAD = 8
"""Cases submitted beyond those that can run: this number, or as many again if that is more."""

TICK_SECONDS = 1.0
"""The longest delay until a signal, or due work, is noticed."""


class OnCluster:
    """Runs cases on workers; has the methods of :class:`~hotplate.cases.side_by_side.SideBySide`.

    :param address: of the scheduler, in Dask's form.
    :param jobs: the most cases submitted at a time; 0 for as many as the workers can run.
    :param board: shows their progress.
    :param on_end: called with the end of each.
    :ivar more: whether to start further ones.
    """

    def __init__(
        self,
        request: Request,
        address: str,
        *,
        jobs: int,
        interrupts: Interrupts,
        board: Board,
        on_end: Callable[[CaseEnd], None],
    ) -> None:
        self.more = True
        self._request = request
        self._address = address
        self._jobs = jobs
        self._interrupts = interrupts
        self._board = board
        self._on_end = on_end
        self._homecoming = Homecoming(request.settings.artifacts.absolute())
        self._run = secrets.token_hex(8)
        self._left: deque[Case] = deque()
        self._waiting: deque[Pending] = deque()
        self._out: dict[str, Pending] = {}
        self._inbox = Inbox()
        self._ending: Deadline | None = None
        self._parcels = Parcels(request, self._run)
        self._sender = ImageSender(self._parcels)
        self._workers = Workers(address, board)

    @property
    def _goes_on(self) -> bool:
        return self.more and not self._interrupts.came

    def run(self, cases: Sequence[Case]) -> None:
        """Run them; after a signal the running ones finish, and no more are started.

        :raises HostError: when no scheduler can be reached.
        """
        scheduler.hush()
        self._left.extend(cases)
        try:
            while self._out or ((self._waiting or self._left) and self._goes_on):
                with self._client() as client, ThreadPoolExecutor(HELPERS) as helpers:
                    try:
                        self._serve(client, helpers)
                    except ConnectionLost:
                        lost = f'the connection to "{self._address}" is lost; trying again'
                        self._board.say([lost])
                        self._all_back("the connection to the scheduler was lost")
                        self._workers.join_again()
        except Interrupted:
            # A signal while the scheduler was away; the caller gives cases without a verdict one.
            return
        except HostError as error:
            if not self._parcels.sent:
                raise
            for key in list(self._out):
                self._end_with(self._forget(key), error)
            while self._waiting or self._left:
                pending = self._waiting.popleft() if self._waiting else self._next()
                if pending is not None:
                    self._end_with(pending, error)

    def _client(self) -> contextlib.AbstractContextManager[Client]:
        """Connect; only one attempt while nothing has been sent."""
        return connected(
            self._address,
            seconds=AGAIN_SECONDS if self._parcels.sent else 0,
            interrupts=self._interrupts,
            topic=topic_of(self._run),
            heard=self._inbox.heard,
        )

    # -- the loop ----------------------------------------------------------------------------------

    def _serve(self, client: Client, helpers: ThreadPoolExecutor) -> None:
        while self._out or ((self._waiting or self._left) and self._goes_on):
            if self._workers.due:
                self._look_at_workers(client)
            self._submit(client)
            for each in self._inbox.arrived(self._board.interval or TICK_SECONDS, self._interrupts):
                if isinstance(each, CaseEvent):
                    self._take_event(client, helpers, each.message)
                else:
                    self._take_done(each, helpers)
            if not self.more:
                self._recall()
            if self._interrupts.came and self._ending is None:
                self._end_all(client, self._interrupts.came)
            if self._ending is not None and self._ending.passed:
                self._give_up()
            self._board.draw()

    def _submit(self, client: Client) -> None:
        most = self._jobs or self._workers.slots + max(AHEAD, self._workers.slots)
        while self._goes_on and len(self._out) < most and (self._waiting or self._left):
            pending = self._waiting.popleft() if self._waiting else self._next()
            if pending is None:
                continue
            pending.attempt += 1
            key = f"hotplate-{self._run}-{pending.number}-{pending.attempt}"
            self._out[key] = pending
            pending.starts = []
            try:
                future: Future[bytes] = client.submit(
                    run_job,
                    self._parcels.pack(pending),
                    key=key,
                    resources=dict(pending.needs),
                    pure=False,
                )
                pending.future = future
                self._inbox.watch(future)
            except (HotplateError, OSError) as error:
                del self._out[key]
                self._end_with(pending, error)

    def _next(self) -> Pending | None:
        """Return the next case, with its needs; one whose files are missing has ended."""
        case = self._left.popleft()
        try:
            return self._parcels.open(case)
        except (HotplateError, OSError) as error:
            self._end_with(Pending(case, {}, ImageSet(())), error)
            return None

    # -- workers -----------------------------------------------------------------------------------

    def _look_at_workers(self, client: Client) -> None:
        """Give the cases that no worker can run their verdict."""
        for key, error in self._workers.look(client, self._out).items():
            self._end_with(self._forget(key), error)

    # -- messages and results ----------------------------------------------------------------------

    def _take_event(
        self, client: Client, helpers: ThreadPoolExecutor, message: Mapping[str, Any]
    ) -> None:
        if message["what"] == "want":
            self._sender.send(client, helpers, message)
            return
        key = message["key"]
        pending = self._out.get(key)
        if pending is None:
            return
        if message["what"] == "begun":
            self._begun(key, pending, message)
        elif pending.starts:
            self._board.doing(pending.case.name, str(message["text"]))

    def _begun(self, key: str, pending: Pending, message: Mapping[str, Any]) -> None:
        """Record the start of a task; a second start means that the earlier worker is gone."""
        again, before = bool(pending.starts), pending.worker
        pending.starts.append(str(message["begun"]))
        pending.worker = str(message["worker"])
        if again and not self._lost(pending, f'the worker "{before}" has gone'):
            self._forget(key)
            return
        self._board.begin(pending.case.name)
        self._board.doing(pending.case.name, f"runs on {pending.worker}")

    def _take_done(self, done: TaskEnd, helpers: ThreadPoolExecutor) -> None:
        pending = self._out.get(done.key)
        if pending is None or pending.future is not done.future:
            return
        if done.brought is not None:
            self._brought(done.key, pending, done.brought)
        elif done.error is not None:
            self._failed(done.key, pending, done.error)
        elif done.future.status == "finished":
            # Fetched in a thread: meanwhile its worker may leave and the case run again, which
            # this thread has to notice.
            helpers.submit(self._inbox.fetch, done.key, done.future)
        elif done.future.status == "error":
            self._failed(done.key, pending, done.future.exception())
        else:
            raise ConnectionLost

    def _brought(self, key: str, pending: Pending, brought: Brought) -> None:
        """Process a verdict; a lost machine is final only after too many losses."""
        verdict = brought.verdict
        why = clean(verdict.reasons[-1]) if verdict.reasons else "no reason"
        if verdict.outcome is Outcome.LOST and self._may_lose(pending):
            self._homecoming.keep_try(pending, brought)
            del self._out[key]
            self._drop(pending)
            self._lost(pending, why)
            self._waiting.appendleft(pending)
            return
        if verdict.outcome is Outcome.INTERRUPTED and not self._interrupts.came:
            # The worker was ended, not the command.
            del self._out[key]
            self._drop(pending)
            if self._lost(pending, f'the worker "{brought.worker}" was ended'):
                self._waiting.appendleft(pending)
            return
        del self._out[key]
        self._drop(pending)
        end = self._homecoming.take(pending, brought)
        if end.verdict.passed:
            self._parcels.remember(pending, end.verdict)
        self._on_end(end)

    def _failed(self, key: str, pending: Pending, error: BaseException | None) -> None:
        """Process a task without a result: its workers died, or an unforeseen error occurred."""
        sent = exception_in(error.args[0]) if error and _is_pickle(error) else ""
        if sent.startswith("KilledWorker"):
            del self._out[key]
            self._drop(pending)
            if self._lost(pending, "its workers died, one after the other"):
                self._waiting.appendleft(pending)
        elif isinstance(error, HotplateError):
            self._end_with(self._forget(key), error)
        elif type(error).__name__ in ("CancelledError", "FutureCancelledError", "CommClosedError"):
            raise ConnectionLost
        else:
            text = sent or f"{type(error).__name__}: {error}"
            self._end_with(
                self._forget(key), HotplateError(f"the task of the case ended by {clean(text)}")
            )

    # -- losses ------------------------------------------------------------------------------------

    def _may_lose(self, pending: Pending) -> bool:
        return len(pending.losses) < self._request.retry_lost and self._goes_on

    def _lost(self, pending: Pending, why: str) -> bool:
        """Record a loss; return False when it was one too many, and the case has its verdict."""
        from hotplate.verdict.verdict import one_line

        if not self._may_lose(pending):
            self._end_with(pending, MachineLostError(why))
            return False
        pending.losses.append(one_line(why))
        name = pending.case.name
        self._board.end(name, [clean(f"{name}: {LOST_ONCE} ({one_line(why)})")])
        return True

    def _all_back(self, why: str) -> None:
        """Take all submitted cases back; those that had started are lost."""
        out, self._out = self._out, {}
        for each in reversed(out.values()):
            self._drop(each)
            if self._interrupts.came:
                self._end_with(each, Interrupted(self._interrupts.came))
            elif not each.starts or self._lost(each, why):
                self._waiting.appendleft(each)
        self._sender.clear()
        self._inbox.clear()

    def _forget(self, key: str) -> Pending:
        """Cancel a task in any state."""
        pending = self._out.pop(key)
        if pending.future is not None:
            with contextlib.suppress(Exception):
                pending.future.cancel()
        self._drop(pending)
        return pending

    def _drop(self, pending: Pending) -> None:
        # Drop the future so that Dask frees the result.
        pending.future = None

    # -- the end -----------------------------------------------------------------------------------

    def _end_all(self, client: Client, number: int) -> None:
        """Ask all to end, by the signal that ended the command; waiting ones are not started."""
        self._ending = Deadline(ENDING_SECONDS + 10, "the cases to end")
        for key, each in list(self._out.items()):
            if each.starts:
                self._board.doing(each.case.name, "ending")
            else:
                self._end_with(self._forget(key), Interrupted(number))
        # A hanging worker does not answer; this thread does not wait for it.
        threading.Thread(target=_end_there, args=(client, self._run, number), daemon=True).start()

    def _recall(self) -> None:
        """Take back cases that have not started, because no more are to start."""
        for key in [key for key, each in self._out.items() if not each.starts]:
            self._forget(key)

    def _give_up(self) -> None:
        for key in list(self._out):
            self._end_with(self._forget(key), Interrupted(self._interrupts.came))

    def _end_with(self, pending: Pending, error: BaseException) -> None:
        """Give a case without a result its verdict."""
        self._on_end(self._homecoming.without(pending, error))


def _is_pickle(error: BaseException) -> bool:
    """Return True for an exception of a worker or the scheduler, see clean_exception."""
    return type(error) is Exception and isinstance(error.args[0], bytes)


def _end_there(client: Client, run: str, number: int) -> None:
    """End the cases of a command on all workers."""
    with contextlib.suppress(Exception):
        client.run(end_run, run, number, on_error="ignore")
