"""Run os-refresh-config, and what it runs, in forks of the agent, which has the code loaded.

If each program is started by itself, a change of the metadata starts four Pythons and six shells,
which keeps a slow guest busy for seconds.  Here the same code runs in forks: os-refresh-config,
dib-run-parts (same order, same log lines), and each script of a phase whose first line is PYTHON
(it needs only the standard library).  Any other script, and any other command of the agent, is
started as a process.
"""

import atexit
import errno
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path
from types import SimpleNamespace

COMMAND = "os-refresh-config"
INTERPRETER = "/usr/bin/python3"
PYTHON = f"#!{INTERPRETER} -IS\n".encode()
PLAIN = re.compile(r"[\w./= -]*", re.ASCII)
"""A command that a shell would only split into words."""

BASH = ("/bin/bash", "-c", '"$1"', "dib-run-parts")
"""Runs one program: if the kernel refuses it, bash runs it as a script, or says what is wrong."""

NAME = "^[0-9A-Za-z_-]+$"
"""The names of scripts that are run, unless RUN_PARTS_REGEX is set."""


def load():
    """Import both programs before their first run; return whether that succeeded."""
    # The virtual environment's Python may differ from that of the scripts.
    if os.path.realpath(sys.executable) != os.path.realpath(INTERPRETER):
        return False
    try:
        import os_apply_config.apply_config
        import os_apply_config.version
        import os_refresh_config.os_refresh_config  # noqa: F401

        # The program asks for this at each start; the search through all packages is cached.
        os_apply_config.version.version_info.version_string()
    except Exception as error:
        # Whatever is wrong: started as programs they may still work, or report it better.
        print(f"os-collect-config: {COMMAND} is not loaded ahead: {error!r}", file=sys.stderr)
        return False
    return True


def instead_of(call_command):
    """Return what the agent calls after a change, instead of its own `call_command`."""

    def run(files, command):
        words = command.split()
        if words[:1] != [COMMAND] or not PLAIN.fullmatch(command):
            call_command(files, command)
            return
        logging.getLogger("os-collect-config").info("Running %s for %s", command, ":".join(files))
        status = fork(lambda: refresh(files, words))
        if status:
            raise subprocess.CalledProcessError(status, command)

    return run


def fork(function):
    """Run `function` in a fork; return its exit status as a shell counts it."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            begin_as_python()
            status = exit_status(function)
            end_as_python()
        finally:
            # The agent's own cleanup must not run here.
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status if status >= 0 else 128 - status


def begin_as_python():
    """Reset in a fork what differs from a Python that has just started."""
    # As Python sets it; the agent changes it.
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Drop what the agent has registered for its own exit, except logging's part.
    atexit._clear()
    weakref.finalize._registry.clear()
    weakref.finalize._registered_with_atexit = False
    atexit.register(logging.shutdown)


def end_as_python():
    """Do what Python does when it exits, in the same order."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()


def exit_status(function):
    """Call `function`; return the exit status of a Python that would run only this."""
    try:
        code = function()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        return 1
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def refresh(files, words):
    """Act as os-refresh-config, in a fork."""
    from os_refresh_config import os_refresh_config

    # The agent's handlers would log every line of the programs twice.
    logging.getLogger().handlers.clear()
    os.environ["OS_CONFIG_FILES"] = ":".join(files)
    sys.argv = words
    os_refresh_config.subprocess = SimpleNamespace(
        CalledProcessError=subprocess.CalledProcessError,
        check_call=check_call,
        call=subprocess.call,
    )
    return os_refresh_config.main(sys.argv)


def check_call(argv, **options):
    """Act as dib-run-parts, unless there are environment files, which only a shell can read."""
    directory = Path(argv[-1])
    environment = directory.parent / "environment.d"
    if environment.is_dir() and any(environment.iterdir()):
        subprocess.check_call(argv, **options)
        return
    failed = 0
    for path in scripts(directory):
        start = time.monotonic()
        status = run_script(path)
        elapsed = time.monotonic() - start
        print(
            f"dib-run-parts: {directory.name}/{path.name} status {status} after {elapsed:.3f} s",
            file=sys.stderr,
            flush=True,
        )
        failed = failed or status
    if failed:
        raise subprocess.CalledProcessError(failed, argv)


def scripts(directory):
    """Return the scripts of a phase in the order of ``LC_ALL=C sort -n``."""
    name = re.compile(os.environ.get("RUN_PARTS_REGEX") or NAME)
    runnable = []
    for path in directory.iterdir():
        if name.search(path.name) and path.is_file() and os.access(path, os.X_OK):
            number = re.match("-?[0-9]+", path.name)
            runnable.append((int(number[0]) if number else 0, os.fsencode(path.name), path))
    return [path for _, _, path in sorted(runnable)]


def run_script(path):
    """Run one script; return its exit status, 127 or 126 when it cannot be started."""
    try:
        if is_ours(path):
            return fork(lambda: run_here(path))
        status = spawn(path)
    except OSError as error:
        print(f"dib-run-parts: {path}: {error.strerror}", file=sys.stderr, flush=True)
        return 127 if error.errno == errno.ENOENT else 126
    return status if status >= 0 else 128 - status


def is_ours(path):
    """Return whether the first line of a script is PYTHON."""
    with path.open("rb") as stream:
        return stream.readline(len(PYTHON) + 1) == PYTHON


def run_here(path):
    """Act as a script in Python."""
    sys.argv = [str(path)]
    runpy.run_path(str(path), run_name="__main__")


def spawn(path):
    """Run a program, one without ``#!`` as bash does; return its status as of subprocess."""
    try:
        return subprocess.call([path])
    except OSError:
        return subprocess.call([*BASH, path])
