"""Scripts in Python that run in a fork of this process instead of a Python of their own.

Starting Python and importing takes a second on a slow machine; a fork has the modules of this
process already. This holds for a script whose first line is LINE, when this process is such a
Python itself: then the script finds the same modules, and leaves no trace in this process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from . import process

INTERPRETER = "/usr/bin/python3"
# -I ignores PYTHON* variables and the script's directory, -S leaves out site-packages: so the
# modules that a script finds do not depend on its caller.
LINE = f"#!{INTERPRETER} -IS\n".encode()
LIBRARY = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: No exit status: a Python that SIGINT interrupts ends by that signal.
INTERRUPTED = -1

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import CodeType, TracebackType
    from typing import Any, Optional

    Streams = Optional[tuple[int, int, int]]


#: By the path of a script: the file that was compiled, and the result.
_compiled: dict[str, tuple[tuple[int, ...], CodeType]] = {}


def compile_ahead(paths: Iterable[str]) -> None:
    """Compile the scripts among *paths* that may run in forks, so that no fork has to do it.

    A script that is changed or replaced later is compiled by its fork. So is one that cannot be
    read or compiled here, for any reason, or that Python warns of: its fork reports it with the
    script's other output, and no other script is affected.
    """
    import warnings

    with warnings.catch_warnings():
        # Raised instead of printed here: the fork compiles such a script anew, and prints the
        # warning into that script's output.
        warnings.simplefilter("error")
        for path in paths:
            with contextlib.suppress(Exception):
                _compile_one(path)


def _compile_one(path: str) -> None:
    # Without this, opening a pipe without a writer would block for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        version = _version(descriptor)
        if stream.readline(len(LINE) + 1) == LINE:
            _compiled[path] = (version, _compile(LINE + stream.read(), path))


def fits(path: str, environment: Mapping[str, str]) -> bool:
    """Return whether the script at *path* may run in a fork of this process. Raises OSError.

    It may not where *environment* names another heat_config than the one that is loaded here.
    """
    # The first line's options, -I and -S, must be this process's own.
    if not (sys.flags.isolated and sys.flags.no_site):
        return False
    library = environment.get("HEAT_CONFIG_LIB")
    if library and os.path.realpath(library) != os.path.realpath(LIBRARY):
        return False
    with open(path, "rb") as stream:
        if stream.readline(len(LINE) + 1) != LINE:
            return False
    return os.path.realpath(sys.executable) == os.path.realpath(INTERPRETER)


def start(
    path: str,
    environment: Mapping[str, str],
    streams: Streams = None,
    prepare: Callable[[], None] = process.prepare,
) -> int:
    """Start the script at *path* in a fork; return its process id.

    *environment* is all of its environment; *streams* are the descriptors that become its standard
    input, output and error, by default those of this process. No other descriptor stays open.
    *prepare* is called in the fork before anything else.

    Raises OSError when the fork fails, and any OSError of *prepare*.
    """
    # The fork has a copy of the buffers, and would write their content a second time.
    sys.stdout.flush()
    sys.stderr.flush()

    def child() -> None:
        prepare()
        _be(path, environment, streams)

    return process.fork(child, path)


def _be(path: str, environment: Mapping[str, str], streams: Streams) -> None:
    """Run the script in the fork, and end as a Python that has run it."""
    status = 1
    try:
        status = _exit_status(lambda: _run(path, environment, streams))
        status = _end(status)
        if status == INTERRUPTED:
            # As Python's own end after KeyboardInterrupt (exit_sigint in Modules/main.c): a shell
            # stops its script only if the child died of the signal.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        # Skip this process's own cleanup.
        os._exit(status)


def _begin(environment: Mapping[str, str], streams: Streams) -> None:
    """Set up the state of a Python that has just started."""
    _reset_signals()
    if streams:
        _redirect(streams)
    _close_others()
    os.environ.clear()
    os.environ.update(environment)
    _coerce_locale()
    _forget_exit_functions()


def _reset_signals() -> None:
    # A wakeup descriptor, if this process has one, is shared with the fork: a signal here would
    # wake this process.
    signal.set_wakeup_fd(-1)
    process.reset_signals()
    # The dispositions that Python sets when it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)


def _redirect(streams: tuple[int, int, int]) -> None:
    import fcntl

    # Out of the way first: the number of one may be another's target.
    moved = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, 3) for stream in streams]
    for target, source in enumerate(moved):
        os.dup2(source, target, inheritable=True)
    # New objects: the old ones may hold data that was read for this process.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _close_others() -> None:
    """Close locks, sockets and pipes; keep their numbers taken, for objects that use them."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    # Replaced, not closed: an object of this process that closes its number later must not close a
    # file which the script has opened since. This also ends the wait in process.fork().
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number != null:
            with contextlib.suppress(OSError):
                os.fstat(number)
                os.dup2(null, number, inheritable=False)
    os.close(null)


def _coerce_locale() -> None:
    """Set LC_CTYPE, which programs inherit, where a starting Python does so (PEP 538)."""
    import _locale

    # LC_ALL overrides LC_CTYPE, so PEP 538 leaves such an environment alone.
    if os.environ.get("LC_ALL"):
        return
    unknown: type[Exception] = vars(_locale)["Error"]
    try:
        name = _locale.setlocale(_locale.LC_CTYPE, "")
    except unknown:
        name = "C"
    if name != "C":
        return
    for target in ("C.UTF-8", "C.utf8", "UTF-8"):
        with contextlib.suppress(unknown):
            os.environ["LC_CTYPE"] = _locale.setlocale(_locale.LC_CTYPE, target)
            return


def _name(path: str) -> None:
    """Set the process name that ps(1) shows to the script's, as exec does."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb", buffering=0) as stream:
        # The kernel keeps 15 bytes (TASK_COMM_LEN is 16 with the NUL).
        stream.write(os.fsencode(os.path.basename(path))[:15])


def _forget_exit_functions() -> None:
    import atexit

    # The functions that modules of this process registered would act on its files and sockets.
    atexit._clear()
    weakref = sys.modules.get("weakref")
    if weakref:
        weakref.finalize._registry.clear()
        # weakref registers with atexit once, and that was just removed: let it do so again.
        weakref.finalize._registered_with_atexit = False
    logging = sys.modules.get("logging")
    if logging:
        # Handlers of this process write to its streams. logging.shutdown is registered at import
        # only.
        logging.getLogger().handlers.clear()
        atexit.register(logging.shutdown)


def _run(path: str, environment: Mapping[str, str], streams: Streams) -> None:
    import types

    _begin(environment, streams)
    _name(path)
    # Read the script under its own environment and descriptors: a failure is its output.
    code = _code(path)
    module = types.ModuleType("__main__")
    module.__file__ = path
    # heat_config.hook, pickle and others look the script up under this name.
    sys.modules["__main__"] = module
    sys.argv = [path]
    exec(code, module.__dict__)  # noqa: S102  it is what the kernel would do with it


def _code(path: str) -> CodeType:
    with open(path, "rb") as stream:
        version, code = _compiled.get(path, (None, None))
        # The file may have been replaced since compile_ahead(), even at the same size.
        if code is not None and version == _version(stream.fileno()):
            return code
        return _compile(stream.read(), path)


def _compile(source: bytes, path: str) -> CodeType:
    # Without the __future__ of this file.
    code: CodeType = compile(source, path, "exec", dont_inherit=True)
    return code


def _version(descriptor: int) -> tuple[int, ...]:
    """Return a key that differs for each content of a path."""
    status = os.fstat(descriptor)
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return (status.st_dev, status.st_ino, status.st_size, *times)


def _exit_status(function: Callable[[], Any]) -> int:
    """Call *function*; return the exit status of a Python that does only this."""
    try:
        code = function()
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        # The script's traceback begins at the script, as it does without a fork.
        error.__traceback__ = _behind_this_file(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    if code is None or isinstance(code, int):
        # The kernel keeps the low byte of an exit status.
        return (code or 0) & 0xFF
    # sys.exit("text") prints the text and ends with 1.
    print(code, file=sys.stderr)
    return 1


def _behind_this_file(trace: TracebackType | None) -> TracebackType | None:
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _end(status: int) -> int:
    """Do the steps of a Python's end, in order; return the status, 120 where Python has it."""
    import atexit

    threading = sys.modules.get("threading")
    if threading:
        # Py_FinalizeEx: wait for the threads, call the exit functions, flush; 120 when that fails.
        threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if not stream.closed:
                stream.flush()
        except OSError:
            status = status or 120
    return status
