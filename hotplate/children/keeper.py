"""Children of the harness: they die with it, however it is killed.

:class:`Keeper` is the harness's end of :mod:`hotplate.children.reaper`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hotplate.children import reaper as program
from hotplate.errors import HostError, MachineLostError, remedy
from hotplate.timing.deadline import Deadline, DeadlineExceeded

FIRST_CHILD_FD = program.FIRST_CHILD_FD
#: The limit for the end of a killed program; a loaded host takes long to give back the memory of a
#: guest, or to end a write of it.
KILL_SECONDS = 60.0


def environment(directory: Path) -> dict[str, str]:
    """Return the whole environment of a child; nothing is inherited."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "LANG": "C.UTF-8",
    }


class Child:
    """A running program that belongs to a :class:`Keeper`.

    :param on_exit: called with the exit status, in a thread of its own, after the end.
    :ivar pid: the process id, for messages; signals go through a pidfd and never hit another
        process.
    """

    def __init__(
        self,
        pid: int,
        *,
        pidfd: int,
        exit_pipe: int,
        stderr: Path,
        on_exit: Callable[[int], None],
    ) -> None:
        self.pid = pid
        self.stderr = stderr
        self.status: int | None = None
        self._pidfd = pidfd
        self._ended = threading.Event()
        self._lock = threading.Lock()
        threading.Thread(
            target=self._watch, args=(exit_pipe, on_exit), name=f"exit-{pid}", daemon=True
        ).start()

    def _watch(self, exit_pipe: int, on_exit: Callable[[int], None]) -> None:
        with os.fdopen(exit_pipe, "rb") as stream:
            text = stream.read()
        with self._lock:
            # No status was sent: the keeper was killed, and the kernel then kills the child as
            # well.
            self.status = int(text or b"-9")
            # Under the lock, so that send_signal() never uses a number that another file has by
            # now.
            os.close(self._pidfd)
        try:
            on_exit(self.status)
        finally:
            self._ended.set()

    def wait(self, deadline: Deadline) -> int:
        """Wait for the end; return the exit status, or minus the signal that ended it.

        :raises DeadlineExceeded: when it still runs then.
        """
        if not self._ended.wait(deadline.left) or self.status is None:
            raise DeadlineExceeded(
                f"gave up waiting for {deadline.what} after {deadline.seconds:.0f} s"
            )
        return self.status

    def send_signal(self, number: int) -> None:
        """Send a signal; do nothing when the program has ended."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self.status is None:
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> int:
        """Kill the program and wait until it is gone."""
        self.send_signal(signal.SIGKILL)
        return self.wait(Deadline(KILL_SECONDS, f"process {self.pid} to die of SIGKILL"))

    def complaint(self) -> str:
        """Return the last lines of its standard error, for an error message."""
        with contextlib.suppress(OSError):
            lines = self.stderr.read_text(errors="replace").strip().splitlines()
            return "; ".join(line.strip() for line in lines[-3:])
        return ""


#: Runs a module of the package in a Python (``-I -S``) that does not find the package itself.
_RUN_MODULE = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); name = sys.argv.pop(1); "
    "__import__(name); sys.modules[name].main(sys.argv[1:])"
)


def _ends(pid: int, *, seconds: float) -> bool:
    """Wait for the end of a child; return whether it came.

    ``Popen.wait(seconds)`` would sleep up to 50 ms longer.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        # It has been collected already.
        return True
    try:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        return bool(ended.poll(seconds * 1000))
    finally:
        os.close(pidfd)


class Keeper:
    """A helper process that owns its children and optionally a namespace.

    A context manager: leaving it ends the helper and its children.

    :param module: a module of this package to run instead of the plain helper; it answers further
        requests, and may import only the standard library and modules that do the same.
    :param on_exit: called in a thread of its own if the helper ends before it is closed.
    """

    def __init__(self, module: str = "", *, on_exit: Callable[[], None] | None = None) -> None:
        self._program = [program.__file__]
        if module:
            root = Path(__file__).resolve().parents[2]
            self._program = ["-c", _RUN_MODULE, str(root), module]
        self._on_exit = on_exit
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def __enter__(self) -> Keeper:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Close our copy of its end afterwards: otherwise its death would not be an end of file
        # here.
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    # Neither the environment's settings for Python nor site-packages.
                    "-I",
                    "-S",
                    *self._program,
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={"PATH": os.defpath, "LANG": "C.UTF-8"},
                # Ctrl-C on the terminal must not reach it: the harness decides when it ends.
                start_new_session=True,
            )
        self._control = ours
        if self._on_exit is not None:
            pidfd = os.pidfd_open(self._process.pid)
            threading.Thread(
                target=self._watch,
                args=(pidfd, self._process),
                name=f"helper-{self._process.pid}",
                daemon=True,
            ).start()
        return self

    def _watch(self, pidfd: int, process: subprocess.Popen[bytes]) -> None:
        ended = select.poll()
        ended.register(pidfd, select.POLLIN)
        # A pidfd becomes readable when its process ends (pidfd_open(2)).
        ended.poll()
        os.close(pidfd)
        # close() forgets the process before it ends it: such an end is not reported.
        if self._process is process and self._on_exit is not None:
            self._on_exit()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the helper and its children."""
        control, self._control = self._control, None
        process, self._process = self._process, None
        if control is not None:
            # End of file on this socket makes the helper kill its children and end.
            control.close()
        if process is not None:
            if process.poll() is None and not _ends(process.pid, seconds=10):
                # The kernel then kills its children (PR_SET_PDEATHSIG).
                process.kill()
            process.wait()

    def leave(self) -> None:
        """End the helper and its children without waiting for it; this process's end waits."""
        threading.Thread(target=self.close, name="helper-end").start()

    @property
    def pid(self) -> int:
        """Return the process id of the helper."""
        if self._process is None:
            raise RuntimeError("the keeper is not running")
        return self._process.pid

    def request(
        self, do: str, fds: Sequence[int] = (), **arguments: object
    ) -> tuple[Any, list[int]]:
        """Send a request to the helper; return its answer and the descriptors that came with it.

        :raises OSError: when the request failed; the text says why.
        :raises MachineLostError: when the helper is gone.
        """
        message = json.dumps({"do": do, **arguments}).encode()
        # Answers have no numbers: one request at a time.
        with self._lock:
            if self._control is None:
                raise MachineLostError("the helper process has been ended")
            try:
                socket.send_fds(self._control, [message], list(fds))
                reply, received = program.receive(self._control)
            # The helper died before, or with our request unread (ECONNRESET).
            except (BrokenPipeError, ConnectionResetError):
                reply, received = b"", []
        if not reply:
            raise MachineLostError("the helper process was killed")
        answer = json.loads(reply)
        if "error" in answer:
            raise OSError(answer["errno"], answer["error"])
        return answer["ok"], received

    def spawn(
        self,
        argv: Sequence[str],
        *,
        directory: Path,
        stderr: Path,
        fds: Sequence[int] = (),
        on_exit: Callable[[int], None] = lambda _: None,
        confine: bool = False,
        spawns: bool = False,
        first: int = FIRST_CHILD_FD,
    ) -> Child:
        """Start a program as the helper's child.

        :param argv: the program and its arguments.
        :param directory: its working directory.
        :param stderr: the file that its standard output and error are appended to.
        :param fds: descriptors it gets, numbered from ``first`` on.
        :param on_exit: see :class:`Child`.
        :param confine: as root, run it as a user that owns nothing.
        :param spawns: it starts programs itself, whose number is limited.
        :raises HostError: when it cannot be started.
        """
        read_end, write_end = os.pipe()
        error_file = os.open(stderr, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            pid, received = self.request(
                "spawn",
                [write_end, error_file, *fds],
                argv=list(argv),
                env=environment(directory),
                cwd=str(directory),
                confine=confine,
                spawns=spawns,
                first=first,
            )
        except OSError as error:
            os.close(read_end)
            raise HostError(
                f'the program "{argv[0]}" cannot be started: {error.strerror}', hint=remedy(error)
            ) from error
        except MachineLostError:
            os.close(read_end)
            raise
        finally:
            # The helper alone keeps this end: end of file on the other one means that the program
            # ended, or that the helper was killed.
            os.close(write_end)
            os.close(error_file)
        return Child(pid, pidfd=received[0], exit_pipe=read_end, stderr=stderr, on_exit=on_exit)
