"""The records of all deployments on this machine, and their changes of state."""

from __future__ import annotations

from . import process, result, schedule, transport
from .state import FINISHED, RECEIVED, SIGNALLED, STARTED, UNDELIVERABLE, Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from .deployments import Deployments
    from .item import Item
    from .journal import Journal
    from .result import Answer
    from .state import Store


class Ledger:
    """The records in *store*, by id; *failed*: whether one could not be written."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store = store
        self._journal = journal
        self.records = store.load()
        self.failed = False

    def receive(self, items: dict[str, Item]) -> None:
        """Record every new deployment, before the first is run."""
        fresh = False
        for item in items.values():
            try:
                fresh |= self._note(item)
            except ValueError:
                # One input is nested too deeply to be recorded: refuse the deployment instead.
                item.flatten()
                fresh |= self._note(item)
        if fresh:
            # One sync of the directory for all new records.
            self._store.sync()

    def _note(self, item: Item) -> bool:
        """Record one deployment of the metadata; return whether it is new."""
        record = self.records.get(item.key)
        if record is None:
            record = Record.new(item.key, item.element)
            record.enter(RECEIVED)
            saved = self.save(record, sync=False)
            self.records[item.key] = record
            self._journal.event("received", record)
            return saved
        if record.state == UNDELIVERABLE:
            self._revive_changed(record, item)
        elif record.state != SIGNALLED:
            # It is in the metadata again. Its address may be newer than the recorded one.
            record.mark.pop("gone", None)
            record.describe(item.element)
        elif record.mark.get("foreign") and not record.name:
            # A record that heat-agents left holds credentials; ours must not.
            record.describe(item.element)
            record.strip()
            self.save(record)
        elif record.mark.pop("gone", None):
            self.save(record)
        return False

    def _revive_changed(self, record: Record, item: Item) -> None:
        """Make an undeliverable signal wait again if its address has changed."""
        gone = record.mark.pop("gone", None)
        unaddressed = transport.kind(item.inputs) is None
        if not unaddressed and schedule.address(item.inputs) != record.mark.get("address"):
            self._wait_again(record, item)
        elif gone:
            self.save(record)

    def _wait_again(self, record: Record, item: Item) -> bool:
        record.describe(item.element)
        for name in ("address", "reason", "signal"):
            record.mark.pop(name, None)
        record.enter(FINISHED)
        return self.save(record)

    def revive(self, key: str, deployments: Deployments) -> bool:
        """Make an undeliverable signal wait again, on an administrator's request."""
        record = self.records[key]
        if record.state == FINISHED:
            return True
        deployments.read()
        if record.state != UNDELIVERABLE:
            self._journal.say(f'"{key}" has no waiting signal: it is {record.state}')
        elif key not in deployments.items:
            self._journal.say(
                f'"{key}" is not among the deployments in the metadata, so the address of its '
                "signal is not known"
            )
        else:
            return self._wait_again(record, deployments.items[key])
        return False

    def run_again(self, key: str, items: dict[str, Item]) -> bool:
        """Make a deployment run once more, on an administrator's request."""
        if key not in items:
            self._journal.say(f'"{key}" is not among the deployments in the metadata')
            return False
        record = self.records[key]
        if record.state in (RECEIVED, STARTED):
            return True
        record.describe(items[key].element)
        # Ours from now on, although heat-agents ran it before.
        record.mark.pop("foreign", None)
        record.enter(RECEIVED, runs=0)
        return self.save(record)

    def save(self, record: Record, sync: bool = True) -> bool:
        """Write a record; return False, and report it, when that fails."""
        try:
            self._store.save(record, sync=sync)
        except OSError as error:
            self._journal.say(f"the state of {record.key} cannot be written: {error.strerror}")
            self.failed = True
            return False
        return True

    def finish(self, record: Record, answer: Answer) -> bool:
        """Record a deployment's result; return False, and report it, when that fails."""
        try:
            try:
                self._store.save_result(record, answer, result.shorten)
            except OSError:
                if self._store.restore():
                    # Deployments without a record would be run again.
                    for other in self.records.values():
                        self.save(other, sync=False)
                else:
                    # A full disk: shorten the logs and give up the reserve, then try once more.
                    self._journal.make_room()
                    self._store.give_room()
                self._store.save_result(record, answer, result.shorten)
        except OSError as error:
            reason = f"the result cannot be recorded yet: {error.strerror}"
            self._journal.event("signal-failed", record, reason=reason)
            self.failed = True
            return False
        self._journal.event("finished", record, status=record.mark.get("status"))
        return True

    def close(self, record: Record, state: str) -> None:
        """Remove the credentials, which are no longer needed, and record the last *state*."""
        record.strip()
        record.mark.pop("signal", None)
        record.enter(state)
        self.save(record)

    def unsent(self, only: str | None = None) -> list[Record]:
        """Return the records whose signal waits."""
        every = self.records.values()
        return [r for r in every if r.state == FINISHED and only in (None, r.key)]

    def note_waiting(self) -> bool:
        """Note for the agent whether a signal waits, and return it."""
        waiting = bool(self.unsent())
        self._store.note_waiting(waiting)
        return waiting

    def forget(self, items: Container[str], patience: float, remove: Callable[[str], None]) -> None:
        """Remove the state of deployments that are gone from *items* for *patience* seconds.

        A source that is down for a while may leave the metadata without some deployments, or
        without any: forgetting one too early would run it twice. remove: called with the id.
        """
        for key, record in list(self.records.items()):
            if key in items:
                continue
            gone = record.mark.get("gone")
            # Uptime, not the clock, which may be wrong; it begins anew with each boot, and so does
            # the wait.
            if not isinstance(gone, dict) or gone.get("boot") != process.boot_id():
                gone = record.mark["gone"] = {"boot": process.boot_id(), "since": schedule.uptime()}
                if patience and not self.save(record):
                    continue
            since = gone.get("since")
            if not isinstance(since, (int, float)) or schedule.uptime() - since >= patience:
                # The files of hooks come first: if the pass is cut short, the record still leads
                # the next one to them.
                remove(key)
                self._store.forget(key)
                del self.records[key]
