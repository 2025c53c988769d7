"""Start a program and wait for it: without pipes, so that no process it leaves behind can block.

Uses fork and exec instead of the subprocess module: on a slow guest that import alone costs more
than all other work of the runner, and the child has to note its own process id between the two.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import errno
import os
import signal
import time

from . import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import NoReturn

# The statuses of a shell (127, 126) and of timeout(1) (124).
NOT_FOUND = 127
NOT_RUNNABLE = 126
TIMED_OUT = 124
#: Errors of a machine short of resources: a later start may succeed.
SCARCE = (
    errno.EAGAIN,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
)
CR_LF = "its lines end with CR LF, where LF alone is expected"
FIRST_LINE = 4096
#: Seconds after which a child is checked although no signal came for it.
#:
#: The kernel may have delivered the signal to another thread that does not block it.
LOST_SIGNAL = 5


def spawn(
    argv: list[str],
    *,
    env: Mapping[str, str],
    stdin: int,
    stdout: int,
    stderr: int,
    cwd: str | None = None,
    session: bool = False,
    note: str | None = None,
    umask: int | None = None,
) -> int:
    """Start *argv* and return its process id.

    stdin, stdout and stderr are open descriptors. Signal dispositions are the default ones again
    in the child: the agent ignores SIGHUP and Python ignores SIGPIPE, and a tool must not inherit
    that. With *session* the child leads a session and process group of its own. *note* is a path
    that gets the child's id before it becomes *argv*. *umask* is the child's, by default ours.

    Raises OSError as exec does (FileNotFoundError when the program is not there).
    """

    def become() -> None:
        prepare(session, note, umask)
        _become(argv, env, (stdin, stdout, stderr), cwd)

    return fork(become, argv[0])


def fork(child: Callable[[], None], name: str) -> int:
    """Call *child* in a fork and return the fork's process id.

    Waits until the child lets go of the descriptors that are not its own, with exec or otherwise.
    Raises OSError, about *name*, when *child* does before that.
    """
    # Both ends close on exec (PEP 446), so the end of file means that exec has succeeded, or that
    # forks._close_others() has replaced the child's end.
    reader, writer = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if pid == 0:
        try:
            os.close(reader)
            child()
        except OSError as error:
            os.write(writer, str(error.errno or errno.EIO).encode())
        except BaseException:
            os.write(writer, str(errno.EINVAL).encode())
        finally:
            # Never return into the parent's code, whatever the child raised.
            os._exit(NOT_FOUND)
    os.close(writer)
    try:
        # Either an errno in decimal digits, or the end of file.
        report = os.read(reader, 16)
    finally:
        os.close(reader)
    if report:
        os.waitpid(pid, 0)
        number = int(report)
        raise OSError(number, os.strerror(number), name)
    return pid


def prepare(session: bool = False, note: str | None = None, umask: int | None = None) -> None:
    """Apply these arguments of spawn in a child, before it becomes another program."""
    if session:
        # A session of its own: end_group() reaches all of it, and a kill of the runner's group does
        # not.
        os.setsid()
    # Noted by the child itself, before exec: so no hook runs without a note.
    if note is not None:
        descriptor = os.open(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            files.write_all(descriptor, identity(os.getpid()).encode())
        except OSError:
            os.unlink(note)  # an empty note would mean that the program had begun
            raise
        os.close(descriptor)
    if umask is not None:
        os.umask(umask)


def reset_signals() -> None:
    """Give every signal its default action, and unblock all: for a child.

    Uses ``_signal``: the signal module makes an enumeration's member of each number, which for 64
    signals in each child is noticeable on a slow machine.
    """
    for number in range(1, _signal.NSIG):
        # Ask first: most are the default already. None is a handler from outside Python.
        if _signal.getsignal(number) not in (_signal.SIG_DFL, None):
            with contextlib.suppress(OSError, ValueError):
                _signal.signal(number, _signal.SIG_DFL)
    # exec keeps the mask: a program with SIGTERM blocked could not be stopped by it.
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())


def _become(
    argv: list[str], env: Mapping[str, str], streams: tuple[int, int, int], cwd: str | None
) -> None:
    reset_signals()
    # Move all three out of the way first: the number of one may be another's target.
    moved = [_above_standard(stream) for stream in streams]
    for target, source in enumerate(moved):
        # The copies above close on exec; 0, 1 and 2 must not.
        os.dup2(source, target, inheritable=True)
    if cwd is not None:
        os.chdir(cwd)
    if os.path.dirname(argv[0]):
        os.execve(argv[0], argv, env)  # noqa: S606 - no shell is wanted
    os.execvpe(argv[0], argv, env)  # noqa: S606


def why_not(path: str, error: OSError) -> str:
    """Return a clause that explains why exec of the file *path* failed with *error*, an OSError.

    For a missing interpreter the kernel itself reports "No such file or directory".
    """
    import re

    from . import values

    first = _first_line(path)
    reason = error.strerror or type(error).__name__
    named = re.match(rb"#![ \t]*([^ \t]+)", first)
    if error.errno == errno.ENOENT and named:
        interpreter = values.encode(named.group(1).decode("utf-8", "replace"))
        reason = f"the interpreter {interpreter} in its first line does not exist"
    elif error.errno == errno.ENOENT and os.path.exists(path):
        # The dynamic loader that the ELF file names (PT_INTERP), such as that of another libc.
        reason = "the program that loads it does not exist"
    elif error.errno == errno.ENOEXEC and not first.startswith((b"#!", b"\x7fELF")):
        reason = 'its first line does not begin with "#!"'
        if first.startswith(b"\xef\xbb\xbf"):
            reason += ", but with a byte order mark"
    return f"{reason}; {CR_LF}" if first.endswith(b"\r") else reason


def has_cr_lf(path: str) -> bool:
    """Return whether the first line of the file *path* ends with CR LF."""
    return _first_line(path).endswith(b"\r")


def _first_line(path: str) -> bytes:
    data = files.read_bounded(path, FIRST_LINE, follow=True) or b""
    return data.partition(b"\n")[0]


def _above_standard(descriptor: int) -> int:
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3)


def path_of(program: str) -> str | None:
    """Return the path of *program* as shutil.which does, without loading bz2 and lzma for it.

    None when it is missing; raises ValueError for a null.
    """
    directories = os.environ.get("PATH", os.defpath).split(os.pathsep)
    # A name with a slash is not searched for.
    if os.path.dirname(program):
        directories = [""]
    elif directories == [""]:
        return None
    for directory in directories:
        path = os.path.join(directory, program)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None


def identity(pid: int) -> str:
    """Return "pid start-time boot-id" of a living process, or "" when there is none.

    Process ids are reused; together with the start time (proc(5), stat field 22) and the id of
    the boot the process id is unique.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            # Field 2, the program's name in parentheses, may contain blanks and parentheses itself:
            # count from the last one. fields[0] is field 3, the state.
            fields = stream.read().rpartition(b")")[2].split()
        # A zombie has ended; only its parent has not yet waited for it.
        if fields[0] in (b"Z", b"X"):
            return ""
        return f"{pid} {fields[19].decode()} {boot_id()}"
    except (OSError, IndexError):
        return ""


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return "unknown"


def wait(pid: int, timeout: float | None = None) -> int | None:
    """Wait for the child *pid*; return its exit status (128 + n when signal n ended it).

    Returns None after *timeout* seconds.
    """
    if timeout is None:
        return _status(os.waitpid(pid, 0)[1])
    deadline = time.monotonic() + timeout
    # Blocked, a SIGCHLD that arrives between waitpid and sigtimedwait stays pending, and is not
    # missed.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    try:
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return _status(status)
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return None
            signal.sigtimedwait((signal.SIGCHLD,), min(remaining, LOST_SIGNAL))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TimeoutError when the block takes longer. For the main thread; not to be nested."""

    def late(_number: int, _frame: object) -> NoReturn:
        raise TimeoutError

    # The handler raises, so an interrupted system call is not repeated (PEP 475).
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def kill_group(pid: int, number: int) -> bool:
    """Send signal *number* to the process group *pid*; return whether there was one."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def end_group(pid: int, grace: float, reap: bool = True) -> None:
    """End the process group *pid*: SIGTERM, then SIGKILL after *grace* seconds or when it is gone.

    With *reap* the leader is our child and its zombie is collected.
    """
    kill_group(pid, signal.SIGTERM)
    kill_group(pid, signal.SIGCONT)  # a stopped process acts on no signal but SIGKILL
    # While the leader is a zombie, its group exists: collect it first, then see who is left.
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline:
        if reap:
            try:
                if wait(pid, min(0.5, max(0.0, deadline - time.monotonic()))) is not None:
                    reap = False
            except ChildProcessError:
                reap = False
        if not reap:
            # Signal 0 only asks whether the group exists.
            if not kill_group(pid, 0):
                return
            time.sleep(0.05)
    kill_group(pid, signal.SIGKILL)
    if reap:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
