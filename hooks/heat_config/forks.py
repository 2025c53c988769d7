"""Scripts in Python that run in a fork of this process instead of a Python of their own.

A Python that starts and imports takes a slow machine a second; what this process has loaded is
there in a fork. That is so for a script whose first line is LINE, and where this process is such a
Python itself: then the script finds the same modules, and nothing of it stays here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

INTERPRETER = "/usr/bin/python3"
LINE = f"#!{INTERPRETER} -IS\n".encode()
INTERRUPTED = -1
"""No exit status: a Python that SIGINT interrupts ends by that signal."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Any, Optional

    Streams = Optional[tuple[int, int, int]]


def fits(path: str) -> bool:
    """Whether the script at *path* may run in a fork of this process. Raises OSError."""
    if not (sys.flags.isolated and sys.flags.no_site):
        return False
    with open(path, "rb") as stream:
        if stream.readline(len(LINE) + 1) != LINE:
            return False
    return os.path.realpath(sys.executable) == os.path.realpath(INTERPRETER)


def start(path: str, environment: Mapping[str, str], streams: Streams = None) -> int:
    """Start the script at *path* in a fork; return its process id.

    *environment* is all of its environment; *streams* are the descriptors that become its standard
    input, output and error, by default those of this process. No other descriptor stays open.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = _exit_status(lambda: _run(path, environment, streams))
            status = _end(status)
            if status == INTERRUPTED:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
        finally:
            # Nothing of what this process does at its end happens here.
            os._exit(status)
    return pid


def _begin(environment: Mapping[str, str], streams: Streams) -> None:
    """Be as a Python that has just started."""
    _reset_signals()
    if streams:
        _redirect(streams)
    _close_others()
    os.environ.clear()
    os.environ.update(environment)
    _forget_exit_functions()


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _redirect(streams: tuple[int, int, int]) -> None:
    import fcntl

    # Out of the way first: one of them may have a number that another is to get.
    moved = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 3) for stream in streams]
    for target, source in enumerate(moved):
        os.dup2(source, target, inheritable=True)
    # New objects: the old ones may hold what was read for this process.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _close_others() -> None:
    """Let go of locks, sockets and pipes; their numbers stay taken, as objects here think."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number != null:
            with contextlib.suppress(OSError):
                os.fstat(number)
                os.dup2(null, number, inheritable=False)
    os.close(null)


def _forget_exit_functions() -> None:
    import atexit

    atexit._clear()
    weakref = sys.modules.get("weakref")
    if weakref:
        weakref.finalize._registry.clear()
        weakref.finalize._registered_with_atexit = False
    logging = sys.modules.get("logging")
    if logging:
        logging.getLogger().handlers.clear()
        atexit.register(logging.shutdown)


def _run(path: str, environment: Mapping[str, str], streams: Streams) -> None:
    import types

    _begin(environment, streams)
    with open(path, "rb") as stream:
        # Without the __future__ of this file.
        code = compile(stream.read(), path, "exec", dont_inherit=True)
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module
    sys.argv = [path]
    exec(code, module.__dict__)  # noqa: S102  it is what the kernel would do with it


def _exit_status(function: Callable[[], Any]) -> int:
    """Call *function*; return the status with which a Python that does only this would exit."""
    try:
        code = function()
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        error.__traceback__ = _behind_this_file(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def _behind_this_file(trace: Optional[TracebackType]) -> Optional[TracebackType]:
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _end(status: int) -> int:
    """Do what a Python does at its end, in that order; return the status, 120 as it has it."""
    import atexit

    threading = sys.modules.get("threading")
    if threading:
        threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if not stream.closed:
                stream.flush()
        except OSError:
            status = status or 120
    return status
