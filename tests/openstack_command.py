"""The real ``openstack`` command, for tests that run it many times.

Its imports take a second of processor time for any command, half of it on the way to the first
answer.  One process imports them once, and each command is a fork of it that calls the function of
the console script.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SECONDS = 120

FORKS = f"""
import contextlib, json, logging, os, signal, sys, time
from openstackclient import shell

# With --wait the clients look every five seconds; no change takes that long here.
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.2))
signal.alarm({SECONDS})
sys.argv[:] = ["openstack", "token", "issue"]
with (
    open(os.devnull, "w") as nowhere,
    contextlib.redirect_stdout(nowhere),
    contextlib.redirect_stderr(nowhere),
):
    shell.main()
signal.alarm(0)
# What it logs to is closed by now; each command has a handler of its own.
logging.getLogger().handlers.clear()

for line in sys.stdin:
    directory, clouds, arguments = json.loads(line)
    sys.argv[:] = ["openstack", *arguments]
    child = os.fork()
    if child == 0:
        signal.alarm({SECONDS})
        os.chdir(directory)
        os.environ.update(HOME=directory, OS_CLIENT_CONFIG_FILE=clouds)
        nothing = os.open(os.devnull, os.O_RDONLY)
        out, err = (os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in ("out", "err"))
        for number, descriptor in enumerate((nothing, out, err)):
            os.dup2(descriptor, number)
        try:
            status = shell.main()
        except SystemExit as ended:
            status = ended.code
        for each in (sys.stdout, sys.stderr):
            each.flush()
        # The end of the interpreter would take ten times the command, because it touches, and so
        # copies, the memory of all modules.
        os._exit(status if isinstance(status, int) else int(status is not None))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class OpenStack:
    """The ``openstack`` command in a directory, with the settings of one cloud only."""

    def __init__(self, directory: Path, clouds: Path, process: subprocess.Popen[str]) -> None:
        self.directory = directory
        self._clouds = clouds
        self._process = process

    def __call__(self, *arguments: str, status: int = 0) -> Any:
        """Run the command with these arguments.

        :return: its output, parsed when that is JSON.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = [str(self.directory), str(self._clouds), arguments]
        print(json.dumps(request), file=self._process.stdin, flush=True)
        ended = self._process.stdout.readline()
        out, err = ((self.directory / name).read_text() for name in ("out", "err"))
        assert ended == f"{status}\n", out + err
        if "json" not in arguments:
            return out + err
        # --wait prints the events first.
        starts = [at for sign in "[{" if (at := f"\n{out}".find(f"\n{sign}")) >= 0]
        return json.loads(out[min(starts) :])


@contextlib.contextmanager
def in_directories() -> Iterator[Callable[..., OpenStack]]:
    """Provide a function that returns the command in a directory; one process serves all.

    Its second argument is the ``clouds.yaml`` that has the cloud "hotplate"; by default the
    directory's.
    """
    with contextlib.ExitStack() as owned:
        processes: list[subprocess.Popen[str]] = []

        def command(directory: Path, clouds: Path | None = None) -> OpenStack:
            clouds = clouds or directory / "clouds.yaml"
            if not processes:
                # The first call has a cloud that answers.
                processes.append(owned.enter_context(_start(directory, clouds)))
            return OpenStack(directory, clouds, processes[0])

        yield command


@contextlib.contextmanager
def in_directory(directory: Path, clouds: Path | None = None) -> Iterator[OpenStack]:
    """Provide the command in a directory; see :func:`in_directories`."""
    with in_directories() as command:
        yield command(directory, clouds)


def _start(directory: Path, clouds: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FORKS],
        cwd=directory,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "LC_ALL": "C.UTF-8",
            "PYTHONWARNINGS": "ignore",
            "OS_CLIENT_CONFIG_FILE": str(clouds),
            "OS_CLOUD": "hotplate",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
