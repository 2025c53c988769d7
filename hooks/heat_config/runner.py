"""55-heat-config: run each deployment's hook once, and signal each result until it is accepted.

A pass reads the deployments that os-apply-config rendered. Its exit status is 0 when every one of
them has run; 1 when something could not be read or recorded, and the agent should run it again;
75 when another runner is running.

A signal that was not accepted is no reason to run all phases again. It is noted in the state
directory (state.WAITING), and while that note exists the agent has ``heat-config resend --due``
send the signals between its polls.
"""

from __future__ import annotations

import os
import signal

from . import result
from .delivery import Delivery
from .deployments import Deployments
from .journal import Journal, place
from .launcher import Launcher
from .ledger import Ledger
from .leftovers import Leftovers
from .settings import Settings
from .state import DAMAGED, RECEIVED, SIGNALLED, STARTED, Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .item import Item
    from .result import Answer
    from .state import Record

AGAIN = 1
# EX_TEMPFAIL of sysexits.h.
BUSY = 75

#: How much longer state is kept when the metadata has no deployments at all.
EMPTY_FACTOR = 7


class Pass:
    """One pass over the deployments, by the only holder of the open *store*."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._journal = Journal(settings, store.directory)
        for problem in settings.problems:
            self._journal.say(problem)
        self._leftovers = Leftovers(
            os.environ,
            base=os.path.dirname(os.path.abspath(settings.state)),
            kept=(settings.state, settings.logs),
        )
        self._deployments = Deployments(settings.document, self._journal)
        self._ledger = Ledger(store, self._journal)
        self._launcher = Launcher(settings, store, self._journal, self._ledger, self._leftovers)
        self._delivery = Delivery(settings, store, self._journal, self._ledger)
        self._failed = False

    def run(self, only: str | None = None) -> int:
        """Do the pass and return the exit status; *only* is the id of a deployment to run again.

        With *only* the status is 1 also when that deployment failed.
        """
        self._deployments.read()
        items = self._deployments.items
        # All deployments are recorded before the first hook, which may reboot the machine.
        self._ledger.receive(items)
        if only is not None and not self._ledger.run_again(only, items):
            return AGAIN
        # A hook may run for hours, so the signals that wait are sent before the first.
        self._deliver_all()
        for item in items.values():
            self._isolated(self._serve, item)
        self._isolated(self._finish_strangers)
        self._isolated(self._forget)
        # Last: the agent looks for the note when this pass has ended.
        self._ledger.note_waiting()
        failed = only is not None and self._ledger.records[only].mark.get("status") != 0
        return AGAIN if failed or self._has_failed() else 0

    def resend(self, only: str | None = None, *, due: bool = False) -> int:
        """Send the waiting signals: all of them, *only* one, or with *due* those that are due.

        Returns the exit status, 1 when one still waits.
        """
        if only is not None and not self._ledger.revive(only, self._deployments):
            return AGAIN
        for record in self._ledger.records.values():
            if not due and only in (None, record.key):
                # A person asks, so the pause between tries does not count.
                record.mark.pop("signal", None)
        self._deliver_all(only)
        waiting = self._ledger.note_waiting()
        if only is not None:
            waiting = self._ledger.records[only].state != SIGNALLED
        return AGAIN if waiting or self._has_failed() else 0

    def _has_failed(self) -> bool:
        parts = (self._deployments, self._ledger, self._launcher)
        return self._failed or any(part.failed for part in parts)

    def _isolated(self, step: Callable[..., object], *arguments: object) -> None:
        """Do one step; an unexpected exception in it must not stop the others."""
        try:
            step(*arguments)
        except Exception as error:
            self._journal.say(f"a step failed unexpectedly: {place(error)}")
            self._failed = True

    def _deliver_all(self, only: str | None = None) -> None:
        for record in self._ledger.unsent(only):
            self._isolated(self._delivery.deliver, record)

    def _serve(self, item: Item) -> None:
        record = self._ledger.records[item.key]
        if record.state in (RECEIVED, STARTED, DAMAGED):
            self._finish(record, self._launcher.run, item, record)

    def _finish_strangers(self) -> None:
        """Record the result of interrupted runs whose deployments have left the metadata since."""
        for key, record in self._ledger.records.items():
            # It cannot be run again without its config, but its result is still owed to Heat.
            if key not in self._deployments.items and record.state == STARTED:
                self._finish(record, self._launcher.recover, record)

    def _finish(self, record: Record, run: Callable[..., Answer | None], *arguments: Any) -> None:
        """Record and signal the result that *run* returns, if any; an exception is a failure.

        So no exception leaves a deployment neither run again nor signalled.
        """
        try:
            answer = run(*arguments)
        except Exception as error:
            effect = "it is not known how far the hook got"
            answer = result.failure(self._journal.fault(record.key, error, effect))
        if answer is None:
            return
        try:
            kept = self._ledger.finish(record, answer)
        except Exception as error:
            effect = "the result of the hook cannot be kept"
            answer = result.failure(self._journal.fault(record.key, error, effect))
            kept = self._ledger.finish(record, answer)
        if kept:
            self._delivery.deliver(record)

    def _forget(self) -> None:
        """Remove what is left of deployments that have been gone for long enough.

        Only metadata that could be read counts.
        """
        items = self._deployments.items
        # A list that is missing or damaged must not look like one without deployments.
        if not self._deployments.is_readable:
            return
        patience = self._settings.forget_after * (1 if items else EMPTY_FACTOR)
        self._ledger.forget(items, patience, self._leftovers.remove)
        self._journal.prune(self._ledger.records, self._settings.keep_logs)


def main(only: str | None = None) -> int:
    """Do one pass and return its exit status."""
    return _begin(lambda one: one.run(only))


def resend(only: str | None = None, *, due: bool = False) -> int:
    """Send signals that wait and return the exit status; see Pass.resend."""
    return _begin(lambda one: one.resend(only, due=due))


def _begin(work: Callable[[Pass], int]) -> int:
    umask = os.umask(0o077)  # ours; hooks get the umask of the agent's unit
    # The agent's directory may be any; hooks inherit this one.
    os.chdir("/")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignoring it would lose the hooks' status
    try:
        return with_state(Settings(umask=umask), work)
    except KeyboardInterrupt:
        # 128 + SIGINT, as a shell reports it.
        return 130


def with_state(settings: Settings, work: Callable[[Pass], int]) -> int:
    """Return the status of *work*, done with the state directory open and locked."""
    store = Store(settings.state)
    try:
        if not store.open():
            return _say("another heat-config is running; nothing was done", BUSY)
    except OSError as error:
        sentence = f'the state directory "{store.directory}" cannot be used: {error.strerror}'
        return _say(sentence, AGAIN)
    try:
        return work(Pass(settings, store))
    finally:
        store.close()


def _say(message: str, status: int) -> int:
    os.write(2, f"heat-config: {message}\n".encode("utf-8", "replace"))
    return status
