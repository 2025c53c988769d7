"""The state of each deployment, on disk: received, started, finished, signalled.

Instead of signalled it may end as undeliverable: its signal was refused, and further tries would
not change that.

``<id>.json`` is the record: the deployment's name, group and derived inputs (those that a signal
needs; they are removed once it is accepted) and, under the key "heat_config", the state. It has
the shape of a deployment, so ``heat-config-notify <id>.json < <id>.notify.json`` works by hand.
``<id>.notify.json`` is the result, in full. ``<id>.json`` without that key, or empty, is a mark
that heat-agents left: that deployment has run and is not run again. Anything else is a damaged
record: it is not known how far its deployment got.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

from . import files, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

RECEIVED = "received"
STARTED = "started"
FINISHED = "finished"
SIGNALLED = "signalled"
UNDELIVERABLE = "undeliverable"
DAMAGED = "damaged"

#: Exists while a signal waits for its next try, so that the agent need not read the records.
WAITING = ".waiting"

#: Bytes reserved on the disk before a hook starts, so that there is room for its answer.
RESERVE = 64 << 10

#: Bytes reserved permanently, so that failures can be recorded on a full disk.
ROOM = 128 << 10

# The count of failed passes is one byte of the reserved file.
MANY = 255
_ROOM = ".room"

# No credentials: these remain in the record for an administrator to see.
KEPT_INPUTS = ("deploy_action", "deploy_server_id", "deploy_stack_id", "deploy_resource_name")
RUN_FILES = (".response", ".pid", ".reserve")

STATES = (RECEIVED, STARTED, FINISHED, SIGNALLED, UNDELIVERABLE, DAMAGED)
_RECORD = ".json"
_RESULT = ".notify.json"


class Record:
    """One deployment's record; the names of its files begin with *key*."""

    def __init__(self, key: str, document: dict[str, Any]) -> None:
        self.key = key
        self.document = document
        mark = document.get("heat_config")
        self.mark = mark if isinstance(mark, dict) else {}
        document["heat_config"] = self.mark

    @classmethod
    def new(cls, key: str, element: dict[str, Any]) -> Record:
        """Return the record of a deployment seen for the first time."""
        record = cls(key, {"heat_config": {"version": 1, "state": RECEIVED, "runs": 0}})
        record.describe(element)
        return record

    @classmethod
    def foreign(cls, key: str) -> Record:
        """Return the record of a deployment that heat-agents have run; it needs no further step."""
        mark = {"version": 1, "state": SIGNALLED, "foreign": True}
        return cls(key, {"id": key, "heat_config": mark})

    @classmethod
    def damaged(cls, key: str) -> Record:
        """Return the record of a deployment whose file cannot be read as a record."""
        return cls(key, {"id": key, "heat_config": {"version": 1, "state": DAMAGED}})

    def describe(self, element: dict[str, Any]) -> None:
        """Copy from *element* the fields needed for a signal and for ``heat-config status``.

        Raises ValueError when an input of Heat's own is nested too deeply.
        """
        for field in ("id", "name", "group", "creation_time"):
            value = element.get(field)
            self.document[field] = values.clean(value) if isinstance(value, str) else ""
        self.document["inputs"] = [
            {"name": name, "value": values.text(value)}
            for name, value in values.named_values(element.get("inputs")).items()
            # Only Heat's own inputs: those of the template may be secrets, and no signal needs
            # them.
            if name.startswith("deploy_")
        ]
        self.document["outputs"] = [
            {"name": name} for name in values.output_names(element.get("outputs"))
        ]

    @property
    def state(self) -> str:
        return str(self.mark.get("state"))

    @property
    def name(self) -> str:
        return self.document.get("name") or ""

    @property
    def group(self) -> str:
        return self.document.get("group") or ""

    @property
    def inputs(self) -> dict[str, Any]:
        return values.named_values(self.document.get("inputs"))

    @property
    def outputs(self) -> list[str]:
        return values.output_names(self.document.get("outputs"))

    def enter(self, state: str, **more: object) -> None:
        """Go to *state*; its time and *more* are noted in the record."""
        self.mark["state"] = state
        self.mark["time_" + state] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.mark.update(more)

    def strip(self) -> None:
        """Remove the credentials: no request is left to sign."""
        self.document["inputs"] = [
            {"name": name, "value": value}
            for name, value in self.inputs.items()
            if name in KEPT_INPUTS
        ]


class Store:
    """The state directory (0700), for one runner at a time."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._lock = -1

    def open(self) -> bool:
        """Make the directory if needed and take its lock; False when another runner has it."""
        import fcntl

        files.make_directory(self.directory)
        # The records hold credentials.
        if os.stat(self.directory).st_mode & 0o077:
            os.chmod(self.directory, files.PRIVATE_DIRECTORY)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock = os.open(os.path.join(self.directory, ".lock"), flags, files.PRIVATE_FILE)
        try:
            # The kernel releases it when this process dies, however that happens. O_CLOEXEC above:
            # a hook must not inherit it.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            return False
        self._keep_room()
        return True

    def close(self) -> None:
        """Let another runner have the directory."""
        os.close(self._lock)

    def restore(self) -> bool:
        """Make the directory again if a hook has removed it; return whether it had.

        Raises OSError when it cannot be made, or another runner was faster.
        """
        if os.path.isdir(self.directory):
            return False
        former = self._lock
        if not self.open():
            self._lock = former
            raise BlockingIOError(errno.EAGAIN, "another heat-config has it")
        os.close(former)
        return True

    def _keep_room(self) -> None:
        """Reserve space for the results of deployments that find the disk full."""
        path = os.path.join(self.directory, _ROOM)
        if os.path.exists(path):
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, files.PRIVATE_FILE)
            try:
                # Blocks, not a sparse file: a hole would have no room when it is needed.
                files.allocate(descriptor, ROOM)
            except OSError:
                os.unlink(path)
            finally:
                os.close(descriptor)

    def give_room(self) -> None:
        """Free the space that was reserved for results on a full disk."""
        with contextlib.suppress(OSError):
            files.remove(os.path.join(self.directory, _ROOM))

    def failed_passes(self, count: int | None = None) -> int:
        """Return how many passes in a row could not start a hook; *count* sets that number.

        It is kept in the reserved file, the only one that can be written on a full disk; if that
        file is gone, the limit counts as reached.
        """
        try:
            descriptor = os.open(
                os.path.join(self.directory, _ROOM), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            )
        except OSError:
            return MANY
        try:
            if count is not None:
                # Overwrites a block that the file already has.
                os.pwrite(descriptor, bytes((min(count, MANY),)), 0)
                return count
            return (os.pread(descriptor, 1, 0) or b"\0")[0]
        except OSError:
            return MANY
        finally:
            os.close(descriptor)

    def path(self, key: str, suffix: str) -> str:
        """Return the path of the file of *key* that ends in *suffix*."""
        return os.path.join(self.directory, key + suffix)

    def load(self, clear: bool = True) -> dict[str, Record]:
        """Return {key: Record} of all that exist; *clear* removes leftovers of interrupted runs."""
        records = {}
        others: list[tuple[str | None, str]] = []
        for name in os.listdir(self.directory):
            # An id has no dot, so the first one ends it.
            key, _, suffix = name.partition(".")
            if suffix == "json" and values.is_plain_id(key):
                records[key] = self._record(key)
            elif name.startswith(".") and name.endswith(".new"):
                # A file of write_whole() that a power cut left. No record owns it.
                others.append((None, name))
            elif "." + suffix in (_RESULT, *RUN_FILES):
                others.append((key, name))
        for owner, name in others if clear else ():
            if owner not in records:
                with contextlib.suppress(OSError):
                    files.remove(os.path.join(self.directory, name))
        return records

    def _record(self, key: str) -> Record:
        data = files.read_bounded(self.path(key, _RECORD), 64 << 20)
        if not data:  # heat-config-rebuild-deployed of heat-agents makes such marks with "touch"
            return Record.damaged(key) if data is None else Record.foreign(key)
        try:
            document = values.decode(data)
        except ValueError:
            return Record.damaged(key)
        if not isinstance(document, dict):
            return Record.damaged(key)
        # The whole deployment, as heat-agents' runner writes it before it starts a hook.
        if "heat_config" not in document:
            return Record.foreign(key)
        mark = document["heat_config"]
        if not isinstance(mark, dict) or "version" not in mark or mark.get("state") not in STATES:
            return Record.damaged(key)
        return Record(key, document)

    def save(self, record: Record, sync: bool = True) -> None:
        """Write *record* whole. Raises OSError; then the old one stands."""
        data = values.encode(record.document)
        files.write_whole(self.path(record.key, _RECORD), data, sync=sync)

    def sync(self) -> None:
        """Make everything that was saved with ``sync=False`` durable."""
        files.sync_directory(self.directory)

    def note_waiting(self, waiting: bool) -> None:
        """Create or remove the file that exists while a signal waits for its next try."""
        path = os.path.join(self.directory, WAITING)
        with contextlib.suppress(OSError):
            if not waiting:
                files.remove(path)
            elif not os.path.exists(path):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, files.PRIVATE_FILE))

    def reserve(self, key: str) -> None:
        """Reserve space for a result. Raises OSError when the disk has none."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.path(key, ".reserve"), flags, files.PRIVATE_FILE)
        try:
            files.allocate(descriptor, RESERVE)
        except BaseException:
            # Without its blocks the file reserves nothing.
            with contextlib.suppress(OSError):
                os.unlink(self.path(key, ".reserve"))
            raise
        finally:
            os.close(descriptor)

    def is_full(self) -> bool:
        """Return whether the disk has too little room for another result."""
        disk = os.statvfs(self.directory)
        return disk.f_bavail * disk.f_frsize < RESERVE

    def save_result(
        self,
        record: Record,
        answer: dict[str, Any],
        shorten: Callable[[dict[str, Any], int], dict[str, Any]],
    ) -> None:
        """Write *answer* as the result of *record*, then the record as finished.

        On a full disk the reserved space is freed and ``shorten(answer, bytes)`` is written
        instead. Raises OSError when even that does not fit; then the record stays as it was.
        """
        path = self.path(record.key, _RESULT)
        data = values.encode(answer)
        try:
            files.write_whole(path, data, sync=False)
        except OSError:
            files.remove(self.path(record.key, ".reserve"))
            files.write_whole(path, values.encode(shorten(answer, RESERVE // 4)), sync=False)
        else:
            files.remove(self.path(record.key, ".reserve"))
        # The record comes second: a reader of "finished" must find the result. Its sync of the
        # directory covers the result too.
        record.enter(FINISHED, status=answer.get("deploy_status_code"))
        self.save(record)
        self.clear_run(record.key)

    def result(self, record: Record) -> dict[str, Any] | None:
        """Return the result of a finished *record*, None when there is no readable one."""
        data = files.read_bounded(self.path(record.key, _RESULT), 256 << 20)
        try:
            answer = values.decode(data) if data else None
        except ValueError:
            return None
        return answer if isinstance(answer, dict) else None

    def clear_run(self, key: str) -> None:
        """Remove the files that only a running hook needs."""
        for suffix in RUN_FILES:
            with contextlib.suppress(OSError):
                files.remove(self.path(key, suffix))

    def forget(self, key: str) -> None:
        """Remove every trace of *key*; the record first: load() clears the rest after a cut."""
        for suffix in (_RECORD, _RESULT, *RUN_FILES):
            with contextlib.suppress(OSError):
                files.remove(self.path(key, suffix))
