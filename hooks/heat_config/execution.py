"""Run a hook, and determine how it ended, even if its runner was killed meanwhile."""

from __future__ import annotations

import functools
import os
import select
import time

from . import capture, files, forks, process, result, transport, values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .journal import Journal
    from .result import Answer
    from .settings import Settings
    from .state import Record, Store

# Seconds between two checks of a process where pidfd_open is missing (Linux before 5.3).
POLL = 0.2


class Execution:
    """The run of one deployment's hook.

    A pump reads its output: stdout goes to ``<id>.response`` in the state directory, stderr to
    the deployment's log; the output of the tool that it runs goes to the captures
    ``<id>.stdout`` and ``<id>.stderr``. So nothing blocks, and nothing is lost with the runner.
    """

    def __init__(
        self,
        record: Record,
        *,
        hook: str,
        seconds: float,
        store: Store,
        journal: Journal,
        settings: Settings,
    ) -> None:
        self._record = record
        self._hook = hook
        self._seconds = seconds
        self._store = store
        self._journal = journal
        self._settings = settings
        self._pump: capture.Pump | None = None
        self._streams: tuple[capture.Stream, ...] = ()
        self._response: int | None = None
        self._stderr: capture.Kept | None = None
        self._path: str | None = None
        #: True when the hook had no chance to clean up after itself.
        self.was_cut = False
        #: The hook's own, 128 + n when signal n ended it; None before its end, and when stopped.
        self.exit_status: int | None = None
        #: True once the hook has, or had, a process.
        self.has_begun = False

    def open(self) -> None:
        """Open the files of a new run. If this raises OSError, the hook must not be started."""
        key = self._record.key
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        # Everything that may need room on the disk comes before the start: a hook that has run must
        # be able to leave its answer.
        self._store.reserve(key)
        # An earlier run's note would be mistaken for this one's.
        files.remove(self._store.path(key, ".pid"))
        response = os.open(self._store.path(key, ".response"), flags, files.PRIVATE_FILE)
        log = self._journal.open(key, "log")
        for stream in ("stdout", "stderr"):
            os.close(self._journal.open(key, stream, fresh=True))
        # In memory for this runner, which a full disk does not affect, and on disk for the next
        # one. One byte more than allowed shows that the answer is too long.
        whole = capture.Whole(os.memfd_create("response"), result.ANSWER_LIMIT + 1)
        self._response = whole.descriptor
        self._stderr = capture.memory(result.TEXT_LIMIT)
        # For its lock alone: another runner waits for the pump by it (capture.wait_idle).
        capture.on_disk(response)
        self._streams = (
            capture.Stream(whole, capture.Whole(response, result.ANSWER_LIMIT + 1)),
            capture.Stream(self._stderr, capture.on_disk(log)),
        )
        self._pump = capture.Pump(self._streams)

    def run(self, path: str, document: dict[str, Any]) -> Answer:
        """Run the hook at *path* with *document* on stdin to its end; return the result.

        Raises OSError: before ``has_begun`` there is no trace of a start, and another may succeed;
        after it recover() reports how the hook ended.
        """
        key, pump = self._record.key, self._pump
        assert pump is not None  # that of open()
        self._path = path
        environment = dict(os.environ)
        environment.setdefault("PATH", os.defpath)
        if environment.get("LC_ALL") == "C":
            # Our unit sets LC_ALL for the agent alone; that of heat-agents does not set it.
            del environment["LC_ALL"]
        environment["HEAT_CONFIG_CAPTURE"] = self._journal.path(key, "")[:-1]
        stdin = os.memfd_create("deployment")  # in memory: it holds credentials
        try:
            # Kept from heat-agents: a hook gets text for each input of type String.
            document = {**document, "inputs": values.with_texts(document["inputs"])}
            files.write_all(stdin, values.encode(document).encode("ascii"))
            os.lseek(stdin, 0, os.SEEK_SET)
            # Not before the pump has left this process group: a kill of the group would lose the
            # output.
            pump.stand_apart()
            pid = self._spawn(path, environment, stdin)
        except values.NestedTooDeeply:
            return result.failure(
                "The deployment holds a list or map that is nested too deeply to be passed on."
            )
        except OSError as error:
            files.remove(self._store.path(key, ".pid"))
            # A later pass may have the memory or the room; anything else fails at each try.
            if error.errno in process.SCARCE:
                raise
            return result.failure(
                f'The hook "{self._hook}" at "{path}" cannot be run: '
                f"{process.why_not(path, error)}.",
                status=process.NOT_RUNNABLE,
            )
        finally:
            os.close(stdin)
        self.has_begun = True
        # Our copies would keep the pump from seeing the end of the streams.
        for stream in self._streams:
            stream.close_writer()
        # Import while the hook runs, so that the signal need not wait for it.
        transport.preload()
        status = self.exit_status = process.wait(pid, self._seconds or None)
        if status is None:
            # Signal the whole group and then settle, so that the last output is part of the result.
            process.end_group(pid, self._settings.kill_after)
            pump.settle()
            return self._too_long()
        if status > 128:  # killed: end the processes that it left running
            self.was_cut = True
            process.end_group(pid, self._settings.kill_after, reap=False)
        pump.settle()
        return self._answer(status)

    def _spawn(self, path: str, environment: dict[str, str], stdin: int) -> int:
        """Start the hook (in a fork if it is a script in plain Python); return its process id."""
        stdout, stderr = (stream.writer for stream in self._streams)
        note = self._store.path(self._record.key, ".pid")
        umask = self._settings.umask
        if forks.fits(path, environment):
            prepare = functools.partial(process.prepare, True, note, umask)
            return forks.start(path, environment, (stdin, stdout, stderr), prepare)
        return process.spawn(
            [path],
            env=environment,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            session=True,
            note=note,
            umask=umask,
        )

    def never_began(self) -> bool:
        """Return whether the run was interrupted, in this boot, before its process began.

        After a power cut a missing note of the process proves nothing: it is not synced.
        """
        same_boot = self._record.mark.get("boot") == process.boot_id()
        return same_boot and not os.path.exists(self._store.path(self._record.key, ".pid"))

    def recover(self) -> Answer | None:
        """Return the result of a run whose runner was killed, None when it cannot be determined.

        A hook that still runs is waited for; one with a complete answer has finished.
        """
        key = self._record.key
        try:
            # open() makes this file before the hook starts; if it is gone, so is any way to know.
            self._response = os.open(self._store.path(key, ".response"), os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.was_cut = True
            return None
        note = (files.read_bounded(self._store.path(key, ".pid"), 256) or b"").decode(
            "ascii", "replace"
        )
        # The note is process.identity()'s: "pid start-time boot-id". After a reboot its hook cannot
        # run.
        number, _, rest = note.partition(" ")
        if number.isdigit() and rest.endswith(process.boot_id()):
            pid = int(number)
            if process.identity(pid) == note:
                self._journal.say(f"hook of {key} still runs; waiting for it")
                # It is no child of this process, so wait(2) does not work and its exit status stays
                # unknown.
                if not _wait_for_stranger(pid, note, self._left(rest)):
                    process.end_group(pid, self._settings.kill_after, reap=False)
                    return self._too_long()
            elif not self._has_answered() and not process.identity(pid):
                # The hook is dead, but processes that it started may run. While they are in its
                # group, the kernel gives the group's number to no new process: no stranger is hit.
                process.end_group(pid, self._settings.kill_after, reap=False)
        if not self._has_answered():
            self.was_cut = True
            return None
        return self._answer(None)

    def _has_answered(self) -> bool:
        capture.wait_idle(self._store.path(self._record.key, ".response"))
        return result.is_complete(self._read_response())

    def _left(self, rest: str) -> float | None:
        """Return the seconds a hook still has; *rest* has its start in clock ticks since boot."""
        if not self._seconds:
            return None
        # Both count from the boot, and include the time in suspend.
        start = int(rest.split()[0]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, start + self._seconds - time.clock_gettime(time.CLOCK_BOOTTIME))

    def _read_response(self) -> bytes:
        assert self._response is not None  # that of open() or recover()
        return files.read_part(self._response, 0, result.ANSWER_LIMIT + 1)

    def _answer(self, status: int | None) -> Answer:
        data = self._read_response()
        printed = self._stderr.read(result.TEXT_LIMIT) if self._stderr is not None else b""
        hint = process.CR_LF if self._path and process.has_cr_lf(self._path) else ""
        answer = result.read_answer(
            data, printed, status, self._hook, self._record.outputs, hint=hint
        )
        if answer[result.STATUS] and not result.is_complete(data) and self._store.is_full():
            answer[result.STDERR] += f'The disk of "{self._store.directory}" is full.\n'
        warning = result.stray(data, self._hook)
        if warning:
            self._journal.say(f"{self._record.key}: {warning}")
            answer[result.STDERR] += warning + "\n"
        # A killed hook has not passed on its tool's output, but the captures have it.
        if status is not None and status > 128 and not result.is_complete(data):
            stdout, stderr = self.partial()
            answer[result.STDOUT] = answer[result.STDOUT] or stdout
            answer[result.STDERR] = stderr + answer[result.STDERR]
        return answer

    def _too_long(self) -> Answer:
        self.was_cut = True
        stdout, stderr = self.partial()
        return result.failure(
            f'The hook "{self._hook}" was stopped: it ran longer than {self._seconds:g} seconds. '
            "The option timeout of the config sets how long it may run.",
            status=process.TIMED_OUT,
            stdout=stdout,
            stderr=stderr,
        )

    def partial(self) -> tuple[str, str]:
        """Return the (stdout, stderr) written so far: the tool's, else the hook's own."""
        captured = []
        for stream in ("stdout", "stderr"):
            capture.wait_idle(self._journal.path(self._record.key, stream))
            try:
                descriptor = self._journal.open(self._record.key, stream)
            except OSError:
                captured.append("")
                continue
            data = capture.Kept(descriptor).read(result.TEXT_LIMIT)
            captured.append(data.decode("utf-8", "replace"))
            os.close(descriptor)
        if not any(captured):
            if self._response is not None:
                captured[0] = result.text_of(self._response)
            if self._stderr is not None:
                captured[1] = self._stderr.read(result.TEXT_LIMIT).decode("utf-8", "replace")
        return captured[0], captured[1]

    def close(self) -> None:
        """Close the files of open() or recover()."""
        if self._pump is not None:
            self._pump.close()
            for stream in self._streams:
                stream.close()
        elif self._response is not None:
            os.close(self._response)
        self._pump = self._response = self._stderr = None


def _wait_for_stranger(pid: int, note: str, seconds: float | None) -> bool:
    """Wait until the process that *note* identifies has ended; return False after *seconds*."""
    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        # Open first, then compare the identity: from here on the descriptor means one process,
        # whatever becomes of the number.
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):  # Linux before 5.3
        while process.identity(pid) == note:
            if deadline is not None and time.monotonic() > deadline:
                return False
            time.sleep(POLL)
        return True
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while process.identity(pid) == note:
            # poll(2) takes milliseconds in an int, which ends at 24 days: wait for an hour at a
            # time.
            left = 3600.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            poll.poll(min(left, 3600.0) * 1000)
        return True
    finally:
        os.close(descriptor)
