"""Played cases: each image is a file with a word that selects how its run goes.

The real command runs in real processes; a ``sitecustomize``, which each of them imports, replaces
the part that boots a machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hotplate_command import default_signals

from hotplate.cases.collect import collect
from hotplate.cases.images import NamedFiles
from hotplate.cases.request import Request
from hotplate.cases.table import Case
from hotplate.interrupts import Interrupts

SECONDS = 120

PLANT = """
import os, pathlib, signal, time
from hotplate.cases import case_run
from hotplate.errors import ImageError, MachineLostError, Outcome, UsageError
from hotplate.verdict.verdict import Verdict

def play(self, folder, events):
    image = self.case.image
    word, _, more = image.read_text().partition(" ")
    # Before the try, which a test waits for and may answer by a signal.
    self._follow({}, events).say(f"plays {word}")
    tries = pathlib.Path(os.environ.get("PLAYED_TRIES", image.parent), f"{image.stem}.tries")
    with tries.open("a") as stream:
        stream.write(f"{os.getpid()}\\n")
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "wait":
        while True:
            signal.pause()
    if word == "until":
        while not (tries.parent / more).exists():
            time.sleep(0.2)
    if word == "lost" and len(tries.read_text().split()) <= int(more):
        raise MachineLostError("the machine went away")
    if word == "fail":
        raise ImageError("the image is bad")
    if word == "usage":
        raise UsageError("that makes no sense")
    return Verdict(
        subject=self.case.subject,
        outcome=Outcome.PASSED,
        status="CREATE_COMPLETE",
        reasons=(),
        stages=(),
        artifacts=str(folder),
    )

case_run.CaseRun._try = play
"""


class Played:
    """``hotplate test`` in a folder with played images."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "planted").mkdir(exist_ok=True)
        (folder / "planted" / "sitecustomize.py").write_text(PLANT)

    def images(self, **words: str) -> list[str]:
        """Write the images, given as name -> word."""
        for name, word in words.items():
            (self.folder / f"{name}.raw").write_text(word)
        return [f"{name}.raw" for name in words]

    def tries(self, name: str) -> list[int]:
        """Return the processes in which an image was tested."""
        file = self.folder / f"{name}.tries"
        return [int(each) for each in file.read_text().split()] if file.exists() else []

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start the command."""
        path = os.pathsep.join([str(self.folder / "planted"), os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "hotplate", "test", *words],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, "HOTPLATE_CACHE": str(self.folder / "cache")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=default_signals,
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        process = self.start(*words)
        out, err = process.communicate(timeout=SECONDS)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def verdicts(self, file: str = "v.json") -> dict[str, Any]:
        """Return the verdicts that ``--json`` wrote, by case."""
        return {each["case"]: each for each in json.loads((self.folder / file).read_text())}


def requested(*words: str) -> Request:
    """Return the request of a command line of ``hotplate test``."""
    from hotplate import cli
    from hotplate.cli.test import request_from

    return request_from(cli._parser(["test"]).parse_args(["test", *words]))


def cases_of(*words: str) -> list[Case]:
    """Return the cases of a command line of ``hotplate test``."""
    request, interrupts = requested(*words), Interrupts()
    return collect(request, NamedFiles(request.settings.cache, interrupts), interrupts)


def wait_until(what: Callable[[], object], *, seconds: float = SECONDS) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def runs(pid: int) -> bool:
    """Return True when a process exists."""
    return Path(f"/proc/{pid}").exists()
