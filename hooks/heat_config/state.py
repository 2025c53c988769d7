"""What is known of each deployment, on disk: received, started, finished, signalled.

In place of signalled it may be undeliverable: nobody takes its signal, and no try will change
that.

``<id>.json`` is the record: the deployment's name, group and derived inputs (those that a signal
needs; they are taken out once it is accepted) and, under the key "heat_config", the state. It has
the shape of a deployment, so ``heat-config-notify <id>.json < <id>.notify.json`` works by hand.
``<id>.notify.json`` is the result, in full. ``<id>.json`` without that key, or empty, is a mark
that heat-agents left: that deployment has run and is not run again. What else is no record is a
damaged one: nobody can say how far its deployment came.
"""

import contextlib
import os
import time

from . import files, values

RECEIVED = "received"
STARTED = "started"
FINISHED = "finished"
SIGNALLED = "signalled"
UNDELIVERABLE = "undeliverable"
DAMAGED = "damaged"

WAITING = ".waiting"
"""There while a signal waits for its next try, so that who starts the tries need not look on."""

RESERVE = 64 << 10
"""Bytes set aside on the disk before a hook starts, so that there is room for what it answers."""

ROOM = 128 << 10
"""Bytes set aside for good, for what a full disk leaves no room for: that it is full."""

MANY = 255
_ROOM = ".room"

KEPT_INPUTS = ("deploy_action", "deploy_server_id", "deploy_stack_id", "deploy_resource_name")
RUN_FILES = (".response", ".pid", ".reserve")

STATES = (RECEIVED, STARTED, FINISHED, SIGNALLED, UNDELIVERABLE, DAMAGED)
_RECORD = ".json"
_RESULT = ".notify.json"


class Record:
    """One deployment's record; *key* is what its files are called."""

    def __init__(self, key, document):
        self.key = key
        self.document = document
        mark = document.get("heat_config")
        self.mark = mark if isinstance(mark, dict) else {}
        document["heat_config"] = self.mark

    @classmethod
    def new(cls, key, element):
        """Return the record of a deployment seen for the first time."""
        record = cls(key, {"heat_config": {"version": 1, "state": RECEIVED, "runs": 0}})
        record.describe(element)
        return record

    @classmethod
    def foreign(cls, key):
        """Return the record of one that heat-agents has run: nothing is left to do."""
        mark = {"version": 1, "state": SIGNALLED, "foreign": True}
        return cls(key, {"id": key, "heat_config": mark})

    @classmethod
    def damaged(cls, key):
        """Return the record of one whose file is no record (any more)."""
        return cls(key, {"id": key, "heat_config": {"version": 1, "state": DAMAGED}})

    def describe(self, element):
        """Take over what a signal and a person need to know of *element*.

        Raises ValueError when an input of Heat's own is nested too deeply.
        """
        for field in ("id", "name", "group", "creation_time"):
            value = element.get(field)
            self.document[field] = values.clean(value) if isinstance(value, str) else ""
        self.document["inputs"] = [
            {"name": name, "value": values.text(value)}
            for name, value in values.named_values(element.get("inputs")).items()
            if name.startswith("deploy_")
        ]
        self.document["outputs"] = [
            {"name": name} for name in values.output_names(element.get("outputs"))
        ]

    @property
    def state(self):
        return self.mark.get("state")

    @property
    def name(self):
        return self.document.get("name") or ""

    @property
    def group(self):
        return self.document.get("group") or ""

    @property
    def inputs(self):
        return values.named_values(self.document.get("inputs"))

    @property
    def outputs(self):
        return values.output_names(self.document.get("outputs"))

    def enter(self, state, **more):
        """Go to *state*; the time of it and *more* are noted in the record."""
        self.mark["state"] = state
        self.mark["time_" + state] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.mark.update(more)

    def strip(self):
        """Take the credentials out: nothing is left to be signed."""
        self.document["inputs"] = [
            {"name": name, "value": value}
            for name, value in self.inputs.items()
            if name in KEPT_INPUTS
        ]


class Store:
    """The state directory (0700), for one runner at a time."""

    def __init__(self, directory):
        self.directory = directory
        self._lock = None

    def open(self):
        """Make the directory if needed and take its lock; False when another runner has it."""
        import fcntl

        files.make_directory(self.directory)
        if os.stat(self.directory).st_mode & 0o077:
            os.chmod(self.directory, files.PRIVATE_DIRECTORY)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._lock = os.open(os.path.join(self.directory, ".lock"), flags, files.PRIVATE_FILE)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._keep_room()
        return True

    def _keep_room(self):
        """Set aside what the answers take of deployments that meet a full disk."""
        path = os.path.join(self.directory, _ROOM)
        if os.path.exists(path):
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, files.PRIVATE_FILE)
            try:
                files.allocate(descriptor, ROOM)
            except OSError:
                os.unlink(path)
            finally:
                os.close(descriptor)

    def give_room(self):
        """Give up what was set aside for the answers of deployments that meet a full disk."""
        with contextlib.suppress(OSError):
            files.remove(os.path.join(self.directory, _ROOM))

    def full_passes(self, count=None):
        """Return how many passes in a row have met a full disk; *count* is what it is from now on.

        It is kept in the room that was set aside, for nothing else can be written then; where that
        is no more there, there have been enough.
        """
        try:
            descriptor = os.open(
                os.path.join(self.directory, _ROOM), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            )
        except OSError:
            return MANY
        try:
            if count is not None:
                os.pwrite(descriptor, bytes((min(count, MANY),)), 0)
                return count
            return (os.pread(descriptor, 1, 0) or b"\0")[0]
        except OSError:
            return MANY
        finally:
            os.close(descriptor)

    def path(self, key, suffix):
        """Return the path of the file of *key* that ends in *suffix*."""
        return os.path.join(self.directory, key + suffix)

    def load(self, clear=True):
        """Return {key: Record} of all that is here; *clear* removes what a cut run left over."""
        records = {}
        others = []
        for name in os.listdir(self.directory):
            key, _, suffix = name.partition(".")
            if suffix == "json" and values.is_plain_id(key):
                records[key] = self._record(key)
            elif name.startswith(".") and name.endswith(".new"):
                others.append((None, name))
            elif "." + suffix in (_RESULT, *RUN_FILES):
                others.append((key, name))
        for key, name in others if clear else ():
            if key not in records:
                with contextlib.suppress(OSError):
                    files.remove(os.path.join(self.directory, name))
        return records

    def _record(self, key):
        data = files.read_bounded(self.path(key, _RECORD), 64 << 20)
        if not data:  # heat-config-rebuild-deployed of heat-agents makes such marks with "touch"
            return Record.damaged(key) if data is None else Record.foreign(key)
        try:
            document = values.decode(data)
        except ValueError:
            return Record.damaged(key)
        if not isinstance(document, dict):
            return Record.damaged(key)
        if "heat_config" not in document:
            return Record.foreign(key)
        mark = document["heat_config"]
        if not isinstance(mark, dict) or "version" not in mark or mark.get("state") not in STATES:
            return Record.damaged(key)
        return Record(key, document)

    def save(self, record, sync=True):
        """Write *record* whole. Raises OSError; then the old one stands."""
        data = values.encode(record.document)
        files.write_whole(self.path(record.key, _RECORD), data, sync=sync)

    def sync(self):
        """Make everything that was saved with ``sync=False`` durable."""
        files.sync_directory(self.directory)

    def note_waiting(self, waiting):
        """Keep the mark that a signal waits for its next try, or take it away."""
        path = os.path.join(self.directory, WAITING)
        with contextlib.suppress(OSError):
            if not waiting:
                files.remove(path)
            elif not os.path.exists(path):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, files.PRIVATE_FILE))

    def reserve(self, key):
        """Set room for a result aside. Raises OSError when the disk has none."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.path(key, ".reserve"), flags, files.PRIVATE_FILE)
        try:
            files.allocate(descriptor, RESERVE)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(self.path(key, ".reserve"))
            raise
        finally:
            os.close(descriptor)

    def is_full(self):
        """True when the disk has hardly room for another result."""
        disk = os.statvfs(self.directory)
        return disk.f_bavail * disk.f_frsize < RESERVE

    def save_result(self, record, answer, shorten):
        """Write *answer* as the result of *record*, then the record as finished.

        On a full disk the room set aside is given up and ``shorten(answer, bytes)`` is written
        instead. Raises OSError when even that does not fit; then the record stands as it was.
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
        # The record comes second: who sees "finished" finds the result. Its directory sync is
        # that of the result too.
        record.enter(FINISHED, status=answer.get("deploy_status_code"))
        self.save(record)
        self.clear_run(record.key)

    def result(self, record):
        """Return the result of a finished *record*, None when there is none to be read."""
        data = files.read_bounded(self.path(record.key, _RESULT), 256 << 20)
        try:
            answer = values.decode(data) if data else None
        except ValueError:
            return None
        return answer if isinstance(answer, dict) else None

    def clear_run(self, key):
        """Remove what only a running hook needs."""
        for suffix in RUN_FILES:
            with contextlib.suppress(OSError):
                files.remove(self.path(key, suffix))

    def forget(self, key):
        """Remove every trace of *key*, the record first: load() clears what a cut leaves."""
        for suffix in (_RECORD, _RESULT, *RUN_FILES):
            with contextlib.suppress(OSError):
                files.remove(self.path(key, suffix))
