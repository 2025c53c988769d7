"""Programs that lint, run as children in an environment that is made for them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotplate.errors import HostError, UsageError

LIMIT = 1800.0
"""Seconds that one program may take; dib-lint takes a tenth of a second for each file."""


@dataclass(frozen=True)
class LintOutput:
    """A program that has ended: its exit status, and what it wrote."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Programs:
    """Where programs are looked for, and what they are given.

    :param path: as ``PATH`` has it.
    :param home: where git and shellcheck look for their settings.
    """

    path: str
    home: str

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Programs:
        """Return those of this Python's environment, then those of ``PATH``."""
        ours = str(Path(sys.executable).parent)
        return cls(f"{ours}{os.pathsep}{environ.get('PATH', os.defpath)}", environ.get("HOME", "/"))

    def find(self, name: str) -> str | None:
        """Return the path of a program; None when it is not installed."""
        return shutil.which(name, path=self.path)

    def run(self, words: Sequence[str | Path], *, cwd: Path, **settings: str) -> LintOutput:
        """Run a program to its end, and end with it what it has started.

        :param words: its path and its arguments.
        :param settings: variables of its environment.
        :raises HostError: when it takes longer than :data:`LIMIT`.
        :raises UsageError: when it cannot be run there.
        """
        environ = {"PATH": self.path, "HOME": self.home, "LC_ALL": "C.UTF-8", **settings}
        try:
            child = subprocess.Popen(
                words,
                cwd=cwd,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f'"{words[0]}" cannot be run: {error.strerror}') from error
        with child:
            try:
                printed, errors = child.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired as error:
                raise HostError(f'"{words[0]}" took longer than {LIMIT:.0f} seconds') from error
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
        texts = (each.decode("utf-8", "replace") for each in (printed, errors))
        return LintOutput(child.returncode, *texts)
