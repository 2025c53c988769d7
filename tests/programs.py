"""Programs that tests write and run, the Pythons of this host, and the processes on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest


def program(path: Path, text: str) -> Path:
    """Write an executable file; text without a first line of its own is a shell's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def completed(command: Sequence[object], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, for a minute at most; return its status and its output as text.

    :param more: as of :func:`subprocess.run`.
    """
    defaults = {"capture_output": True, "text": True, "timeout": 60}
    return subprocess.run(list(map(os.fspath, command)), **{**defaults, **more})


def tool_path(name: str) -> str | None:
    """Return the path of a program on PATH, of the system, or beside the Python of the tests."""
    places = (os.environ["PATH"], "/usr/sbin", "/sbin", str(Path(sys.executable).parent))
    return shutil.which(name, path=os.pathsep.join(places))


def find_python(version: str) -> str | None:
    """Return a Python of the version, "3.9", under pyenv or on PATH."""
    places = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(places.glob(f"{version}.*/bin/python"))
    return str(found[-1]) if found else shutil.which(f"python{version}")


def python_of(version: str) -> str:
    """Return a Python of the version; skip the test without one."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on this host, nor under pyenv")
    return python


def alive(pid: int) -> bool:
    """Return True for a process that has not ended, even if nobody has waited for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Return when the condition is true; fail after the time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
