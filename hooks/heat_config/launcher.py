"""Run the hook of a deployment, or find out how one that was interrupted ended."""

from __future__ import annotations

import errno

from . import process, result, transport, values
from .deployments import NoHook, find_hook
from .execution import Execution
from .settings import seconds
from .state import DAMAGED, MANY, RECEIVED, STARTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .item import Item
    from .journal import Journal
    from .ledger import Ledger
    from .leftovers import Leftovers
    from .result import Answer
    from .settings import Settings
    from .state import Record, Store

# A deployment that takes the machine down each time must come to an end.
MAX_RERUNS = 3
FULL = (errno.ENOSPC, errno.EDQUOT)
#: After this many passes in a row without room for a hook, the deployments not started fail.
FAILED_PASSES = 5


class Launcher:
    """Determine results; *failed*: whether a deployment was left to the next pass."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        journal: Journal,
        ledger: Ledger,
        leftovers: Leftovers,
    ) -> None:
        self._settings = settings
        self._store = store
        self._journal = journal
        self._ledger = ledger
        self._leftovers = leftovers
        self.failed = False

    def run(self, item: Item, record: Record) -> Answer | None:
        """Return the result of a deployment, None when it is to be tried again."""
        refusal = item.refusal
        if record.state == DAMAGED:
            refusal = (
                "The record of this deployment on the server is damaged, so it is not known "
                "whether it has run; it is not run now. Check the disk of "
                f"{values.encode(values.clean(self._store.directory))}."
            )
        hook = None
        if refusal is None:
            try:
                hook = find_hook(item.group, self._settings.hooks)
            except NoHook as error:
                refusal = str(error)
        if refusal is not None:
            self._journal.event("rejected", record, reason=refusal)
            return result.failure(refusal)
        if hook is None:
            # The group needs no program: os-apply-config has done the work.
            return result.success()
        execution = self._execution(record, hook.name, self._limit(item))
        try:
            # A former pass was killed. The deployment must not run twice, unless it had not begun
            # or its options ask for it.
            if record.state == STARTED and not execution.never_began():
                answer = self._recover(record, execution, item)
                if answer is not None:
                    return answer
                record.mark["runs"] = record.mark.get("runs", 1) + 1
            return self._start(item, record, execution, hook.path)
        except OSError as error:
            return self._without_room(record, execution, error)
        finally:
            execution.close()

    def recover(self, record: Record) -> Answer | None:
        """Return the result of a started deployment that has left the metadata since.

        None when it is to be tried again.
        """
        execution = self._execution(record, record.group, self._settings.timeout)
        try:
            return self._recover(record, execution)
        except OSError as error:
            return self._without_room(record, execution, error)
        finally:
            execution.close()

    def _limit(self, item: Item) -> float:
        """Return how many seconds the hook may run."""
        given = item.options.get("timeout")
        limit = seconds(given)
        if limit is not None:
            return limit
        if given is not None:
            self._journal.say(
                f"the option timeout of {item.key} is not a number of seconds and was ignored"
            )
        return self._settings.timeout

    def _execution(self, record: Record, hook: str, limit: float) -> Execution:
        return Execution(
            record,
            hook=hook,
            seconds=limit,
            store=self._store,
            journal=self._journal,
            settings=self._settings,
        )

    def _start(self, item: Item, record: Record, execution: Execution, path: str) -> Answer:
        self._journal.make_room()
        # The order makes the run happen at most once: reserve room, record the start durably, then
        # start.
        execution.open()
        # For the way back, when the start is not recorded or no process is made.
        before = dict(record.mark)
        record.enter(STARTED, runs=record.mark.get("runs") or 1, boot=process.boot_id())
        try:
            self._store.save(record)
        except OSError:
            record.mark.clear()
            record.mark.update(before)  # it has not begun
            raise
        self._warn_of_age(record)
        self._journal.event("started", record)
        # An earlier run's files would be returned as this one's outputs.
        self._leftovers.remove_outputs(record.key)
        try:
            answer = execution.run(path, item.element)
        except OSError:
            if not execution.has_begun:
                # No process was made, so the next pass may start it as if nothing had happened.
                record.mark.update(before, state=RECEIVED)
                self._ledger.save(record)
            raise
        # A hook was started, so the passes without room are no longer in a row.
        if not self.failed and 0 < self._store.failed_passes() < MANY:
            self._store.failed_passes(0)
        if execution.was_cut:
            self._leftovers.remove_secrets(record)
        return answer

    def _without_room(self, record: Record, execution: Execution, error: OSError) -> Answer | None:
        """Leave deployments without room to the next pass; the fifth pass fails them."""
        # Count a pass once, however many deployments it leaves to the next.
        if not self.failed:
            self._store.failed_passes(self._store.failed_passes() + 1)
        self.failed = True
        has_begun = record.state == STARTED and not execution.never_began()
        if self._store.failed_passes() < FAILED_PASSES:
            reason = "the end of the hook cannot be read yet"
            if not has_begun:
                reason = "the hook was not started, because its start cannot be recorded"
                if error.errno not in FULL:
                    reason = "the hook was not started, it is tried again"
            reason = f"{reason}: {error.strerror}"
            self._journal.event("signal-failed", record, reason=reason)
            return None
        if has_begun:
            return result.failure(
                "The hook was started, but its end could not be read at any attempt: "
                f"{error.strerror}."
            )
        if error.errno in FULL:
            return result.failure(
                f'The hook was not started: the disk of "{self._store.directory}" was full at '
                "every attempt."
            )
        return result.failure(f"The hook was not started: {error.strerror}, at every attempt.")

    def _warn_of_age(self, record: Record) -> None:
        url = record.inputs.get("deploy_signal_id")
        if transport.kind(record.inputs) != "CFN_SIGNAL" or not isinstance(url, str):
            return
        age = transport.url_age(url)
        # Say so before the hook runs: the refusal comes only after it, which may be hours.
        if age is not None and age > transport.AGED:
            self._journal.note(
                record.key,
                f"the URL to signal to was signed {int(age // 60)} minutes ago and may be refused",
            )

    def _recover(
        self, record: Record, execution: Execution, item: Item | None = None
    ) -> Answer | None:
        """Return the result of an interrupted run; None when it is to be run again."""
        answer = execution.recover()
        if execution.was_cut:
            self._leftovers.remove_secrets(record)
        if answer is not None:
            return answer
        runs = record.mark.get("runs", 1)
        rerun = item is not None and item.options.get("on_interrupt") == "rerun"
        if rerun and runs <= MAX_RERUNS:
            self._journal.event(
                "interrupted", record, reason=f"run {runs} was interrupted; running it again"
            )
            execution.close()
            return None
        sentence = (
            f"The hook was interrupted, at run {runs}: the machine or the agent stopped before it "
            "ended, so it is not known how far it got."
        )
        if not rerun:
            sentence += " With the option on_interrupt: rerun it would be run again."
        self._journal.event("interrupted", record, reason=sentence)
        stdout, stderr = execution.partial()
        return result.failure(sentence, stdout=stdout, stderr=stderr)
