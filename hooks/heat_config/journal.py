"""One readable line for each step: to the journal (stderr), the console, and the deployment's log.

    heat-config: <event> id=<id> group=<group> name=<JSON>[ status=<n>][ reason=<JSON>]

Never an input or an output. A test harness follows the console lines.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time

from . import capture, files, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

    from .settings import Settings
    from .state import Record

EVENTS = (
    "received",
    "started",
    "finished",
    "signalled",
    "signal-failed",
    "interrupted",
    "rejected",
)

STREAMS = ("log", "stdout", "stderr")

_NOT_PLAIN = re.compile(r"[^0-9A-Za-z_.:-]")


class Journal:
    """Writer of the lines; *settings* names the console and the directory of the logs."""

    def __init__(self, settings: Settings, fallback: str) -> None:
        self._console = settings.console
        self.directory = settings.logs
        try:
            files.make_directory(self.directory)
            # The logs hold the output of tools, which may print secrets.
            if os.stat(self.directory).st_mode & 0o077:
                os.chmod(self.directory, files.PRIVATE_DIRECTORY)
        except OSError as error:
            self.say(
                f'the log directory "{self.directory}" cannot be used ({error.strerror}); logs go '
                f'to "{fallback}"'
            )
            self.directory = fallback

    def path(self, key: str, stream: str = "log") -> str:
        """Return the path of a deployment's log, or of its captured stdout or stderr."""
        return os.path.join(self.directory, f"{key}.{stream}")

    def say(self, message: str) -> None:
        """Write a line about the run as a whole to the journal."""
        _write(2, f"heat-config: {message}\n")

    def fault(self, key: str, error: Exception, effect: str) -> str:
        """Write a line about an unexpected *error*; return a sentence for the deployment's result.

        effect: the rest of the sentence, without a value.
        """
        sentence = f"failed unexpectedly ({place(error)}), so {effect}"
        self.say(f"the runner {sentence}: {key}")
        return f"The runner {sentence}."

    def event(
        self, event: str, record: Record, *, status: object = None, reason: str | None = None
    ) -> None:
        """Write a line about one deployment to the journal, the console and its log."""
        # A group or name comes from the template: neither may end the line or forge a field of it.
        group = _NOT_PLAIN.sub("_", record.group)[:64] or "-"
        name = values.encode(record.name[:200])
        line = f"heat-config: {event} id={record.key} group={group} name={name}"
        if status is not None:
            line += f" status={status}"
        if reason is not None:
            line += f" reason={values.encode(reason)}"
        _write(2, line + "\n")
        self._to_console(line)
        self.note(record.key, line)

    def note(self, key: str, line: str) -> None:
        """Write a line to the deployment's own log only."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            descriptor = self.open(key, "log")
        except OSError:
            return
        text = f"{stamp} {line}\n"
        # Not a plain write: the hook's pump may append to the same file.
        capture.Kept(descriptor).append(text.encode("utf-8", "replace"))
        os.close(descriptor)

    def open(self, key: str, stream: str, fresh: bool = False) -> int:
        """Open a deployment's log or capture, for a Kept; *fresh* empties it first."""
        # Kept reads back its mark, and writes at the end by itself: no O_APPEND.
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        if fresh:
            flags |= os.O_TRUNC
        path = self.path(key, stream)
        try:
            return os.open(path, flags, files.PRIVATE_FILE)
        except FileNotFoundError:  # a hook has removed the directory, as by rm -rf /var/log/*
            files.make_directory(self.directory)
            return os.open(path, flags, files.PRIVATE_FILE)

    def extent(self, key: str, stream: str) -> tuple[int, int]:
        """Return (bytes in a log or capture, bytes omitted from its middle)."""
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(self.path(key, stream), flags)
        except OSError:
            return 0, 0
        try:
            return capture.Kept(descriptor).extent()
        finally:
            os.close(descriptor)

    def make_room(self) -> None:
        """On a disk that is nearly full, keep only the head and the tail of each log."""
        if not capture.is_short(self.directory):
            return
        with contextlib.suppress(OSError):
            for name in os.listdir(self.directory):
                key, _, stream = name.rpartition(".")
                if stream in STREAMS:
                    with contextlib.suppress(OSError):
                        descriptor = self.open(key, stream)
                        capture.Kept(descriptor).shrink()
                        os.close(descriptor)

    def _to_console(self, line: str) -> None:
        try:
            descriptor = os.open(
                self._console,
                # O_NOCTTY: a terminal must not become this process's controlling one. O_NONBLOCK: a
                # serial console that nobody reads must not hold up a deployment.
                os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC,
            )
        except OSError:
            return
        _write(descriptor, line + "\n")
        os.close(descriptor)

    def prune(self, keep: Container[str], age: float) -> None:
        """Remove logs of deployments not in *keep* that are older than *age* seconds."""
        limit = time.time() - age
        try:
            names = os.listdir(self.directory)
        except OSError:
            return
        for name in names:
            key, _, stream = name.rpartition(".")
            if stream not in STREAMS or key in keep:
                continue
            path = os.path.join(self.directory, name)
            try:
                # The age of the file itself, not that of a link's target.
                if os.lstat(path).st_mtime < limit:
                    os.unlink(path)
            except OSError:
                continue


def _write(descriptor: int, text: str) -> None:
    # A closed journal, a full disk or a console that nobody reads must not stop a deployment.
    try:
        # Keep the order with lines that were printed through Python's buffer.
        sys.stderr.flush()
        os.write(descriptor, text.encode("utf-8", "replace"))
    except (OSError, ValueError):
        return


def place(error: Exception) -> str:
    """Return the type of *error* and where it was raised, not its message: it may quote a value."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    name = os.path.basename(trace.tb_frame.f_code.co_filename)
    return f"{type(error).__name__} at {name} line {trace.tb_lineno}"
