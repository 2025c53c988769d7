"""One readable line for each step: to the journal (stderr), the console, and the deployment's log.

    heat-config: <event> id=<id> group=<group> name=<JSON>[ status=<n>][ reason=<JSON>]

Never an input or an output. A test harness follows the console lines.
"""

import contextlib
import os
import re
import sys
import time

from . import capture, files, values

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

    def __init__(self, settings, fallback):
        self._console = settings.console
        self.directory = settings.logs
        try:
            files.make_directory(self.directory)
            if os.stat(self.directory).st_mode & 0o077:
                os.chmod(self.directory, files.PRIVATE_DIRECTORY)
        except OSError as error:
            self.say(
                'the log directory "%s" cannot be used (%s); logs go to "%s"'
                % (self.directory, error.strerror, fallback)
            )
            self.directory = fallback

    def path(self, key, stream="log"):
        """Return the path of a deployment's log, or of its captured stdout or stderr."""
        return os.path.join(self.directory, "%s.%s" % (key, stream))

    def say(self, message):
        """Write a line about the run as a whole to the journal."""
        _write(2, "heat-config: %s\n" % message)

    def event(self, event, record, *, status=None, reason=None):
        """Write a line about one deployment to the journal, the console and its log."""
        line = "heat-config: %s id=%s group=%s name=%s" % (
            event,
            record.key,
            _NOT_PLAIN.sub("_", record.group)[:64] or "-",
            values.encode(record.name[:200]),
        )
        if status is not None:
            line += " status=%s" % status
        if reason is not None:
            line += " reason=%s" % values.encode(reason)
        _write(2, line + "\n")
        self._to_console(line)
        self.note(record.key, line)

    def note(self, key, line):
        """Write a line to the deployment's own log only."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            descriptor = self.open(key, "log")
        except OSError:
            return
        text = "%s %s\n" % (stamp, line)
        capture.Kept(descriptor).append(text.encode("utf-8", "replace"))
        os.close(descriptor)

    def open(self, key, stream, fresh=False):
        """Open a deployment's log or capture, for a Kept; *fresh* empties it first."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        if fresh:
            flags |= os.O_TRUNC
        return os.open(self.path(key, stream), flags, files.PRIVATE_FILE)

    def extent(self, key, stream):
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

    def make_room(self):
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

    def _to_console(self, line):
        try:
            descriptor = os.open(
                self._console,
                os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC,
            )
        except OSError:
            return
        _write(descriptor, line + "\n")
        os.close(descriptor)

    def prune(self, keep, age):
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
                if os.lstat(path).st_mtime < limit:
                    os.unlink(path)
            except OSError:
                continue


def _write(descriptor, text):
    # A closed journal, a full disk or a console that nobody reads must not stop a deployment.
    try:
        sys.stderr.flush()
        os.write(descriptor, text.encode("utf-8", "replace"))
    except (OSError, ValueError):
        return
