"""Send the signal of a finished deployment, and note when to try again."""

from __future__ import annotations

import os

from . import files, process, result, schedule, transport, values
from .refusal import NotAccepted
from .state import SIGNALLED, UNDELIVERABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .journal import Journal
    from .ledger import Ledger
    from .settings import Settings
    from .state import Record, Store

#: Bytes that are kept of the output of the administrator's own program for signals.
OUTPUT_LIMIT = 16 << 10


class Delivery:
    """Signal the results of deployments to Heat."""

    def __init__(self, settings: Settings, store: Store, journal: Journal, ledger: Ledger) -> None:
        self._settings = settings
        self._store = store
        self._journal = journal
        self._ledger = ledger
        self._sender = transport.Sender(settings)

    def deliver(self, record: Record) -> None:
        """Signal a finished deployment, and record that it was accepted or when to try again."""
        kind = transport.kind(record.inputs)
        if kind is not None and not schedule.is_due(record.mark.get("signal")):
            return
        kept = self._store.result(record)
        # A result that is lost still ends the wait in Heat: as a failure.
        lost = "The result of the deployment could not be read back."
        answer = result.failure(lost) if kept is None else kept
        limit = transport.limit(record.inputs)
        try:
            # Only the signal is trimmed; the file keeps the whole, and the marks say where it is.
            body = result.trim(
                answer, limit, lambda field: self._where(record, field, answer.get(field))
            )
        except Exception as error:
            effect = "the result of the hook cannot be sent"
            answer = result.failure(self._journal.fault(record.key, error, effect))
            body = values.encode(answer).encode("ascii")
        try:
            # An administrator's program replaces the request, but not the decision whether there is
            # one.
            if self._settings.notify and kind not in (None, "NO_SIGNAL"):
                self._through_program(self._settings.notify, record, body)
            else:
                self._sender.send(record.inputs, body)
        except NotAccepted as error:
            self._not_accepted(record, error)
            return
        self._ledger.close(record, SIGNALLED)
        self._journal.event("signalled", record, status=record.mark.get("status"))

    def _not_accepted(self, record: Record, error: NotAccepted) -> None:
        """Record a failed try, and whether it was the last."""
        note = record.mark["signal"] = schedule.failed_try(record.mark.get("signal"), error)
        reason = error.sentence
        if schedule.is_final(note, error):
            # close() removes the credentials, so note a digest of the address first: the ledger
            # revives the signal when the metadata has another one (Ledger.receive).
            record.mark.update(reason=reason, address=schedule.address(record.inputs))
            self._ledger.close(record, UNDELIVERABLE)
            reason += ". It will not be tried again; the result is kept on the server"
        else:
            self._ledger.save(record)
        self._journal.event("signal-failed", record, reason=reason)

    def _where(self, record: Record, field: str, value: object) -> str:
        """Return a clause with the place of the whole *value* of a *field* of the result."""
        was_cut, named = result.earlier_cut(value)
        if named:
            return named
        path = self._store.path(record.key, ".notify.json")
        stream = {result.STDOUT: "stdout", result.STDERR: "stderr"}.get(field)
        if stream and isinstance(value, str):
            kept, left_out = self._journal.extent(record.key, stream)
            if kept + left_out >= len(value):  # else it is the hook's own output, not a tool's
                path, was_cut = self._journal.path(record.key, stream), False
                if left_out:
                    return f"all but {left_out} bytes of it are on the server in {path}"
        return f"{'all that is kept is' if was_cut else 'the whole is'} on the server in {path}"

    def _through_program(self, program: str, record: Record, body: bytes) -> None:
        """Pass the signal to the program in HEAT_CONFIG_NOTIFY, as heat-agents do.

        Its output goes to the deployment's own log, the only place that shows why it failed.
        """
        # Files in memory, not pipes: a program that does not read, or that leaves a child behind,
        # blocks nothing.
        stdin = os.memfd_create("signal")
        output = os.memfd_create("output")
        try:
            files.write_all(stdin, body)
            os.lseek(stdin, 0, os.SEEK_SET)
            # The program reads the address in this file, so it must be the current one.
            self._store.save(record)
            pid = process.spawn(
                [program, self._store.path(record.key, ".json")],
                env=dict(os.environ),
                stdin=stdin,
                stdout=output,
                stderr=output,
                # A group of its own, which end_group() can kill with all children.
                session=True,
                umask=self._settings.umask,
            )
            status = process.wait(pid, self._settings.signal_time)
            if status is None:
                process.end_group(pid, self._settings.kill_after)
            text = files.read_part(output, 0, OUTPUT_LIMIT).decode("utf-8", "replace")
            if text:
                self._journal.note(record.key, f'"{program}" printed:\n' + text.rstrip("\n"))
        except OSError as error:
            raise NotAccepted(
                f'"{program}" (HEAT_CONFIG_NOTIFY) cannot be run: {process.why_not(program, error)}'
            ) from None
        finally:
            os.close(stdin)
            os.close(output)
        if status != 0:
            how = "took too long" if status is None else f"ended with status {status}"
            raise NotAccepted(
                f'"{program}" (HEAT_CONFIG_NOTIFY) {how}; its output is shown by '
                f'"heat-config log {record.key}"'
            )
