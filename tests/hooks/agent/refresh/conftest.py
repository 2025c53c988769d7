"""The two os-refresh-configs side by side: upstream's with its dib-run-parts, and ours."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from programs import completed

HOOKS = Path(__file__).resolve().parents[4] / "hooks"

OURS = HOOKS / "os-refresh-config"
THEIRS = Path(sys.executable).with_name("os-refresh-config")
PYTHON = "#!/usr/bin/python3 -IS\n"

STAMPS = (
    (re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] ", re.MULTILINE), ""),
    (re.compile(r"^dib-run-parts \w{3} \w{3} +\d+ [\d:]{8} \S+ \d{4} ", re.MULTILINE), "parts: "),
    (re.compile(r"after [0-9]+\.[0-9]{3} s$", re.MULTILINE), "after"),
)


@dataclass(frozen=True)
class Outcome:
    """The result of a program; *stderr* has no times."""

    status: int
    stdout: str
    stderr: str

    @property
    def common(self) -> list[str]:
        """Return the lines that both programs have: without their profiles and our status lines."""
        lines = [line for line in self.stderr.splitlines() if not line.startswith("dib-run-parts:")]
        profile = "parts: ----------------------- PROFILING"
        kept, skipping = [], False
        for line in lines:
            skipping = skipping or line.startswith(profile)
            if not skipping and not line.startswith("+"):
                kept.append(line)
            skipping = skipping and "END PROFILING" not in line
        return kept


class Phases:
    """A tree of phases that both programs can run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.base = root / "base"
        self.lock = root / "lock"
        self.base.mkdir()

    def script(self, name: str, text: str | bytes, *, phase: str = "configure") -> Path:
        """Write an executable file; text without a first line of its own is a shell's."""
        path = self.base / f"{phase}.d" / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(text, str):
            text = (text if text.startswith("#!") else f"#!/bin/sh\n{text}\n").encode()
        path.write_bytes(text)
        path.chmod(0o755)
        return path

    def environment_file(self, name: str, text: str) -> None:
        """Write a file for the shell that starts the scripts."""
        (self.base / "environment.d").mkdir(exist_ok=True)
        (self.base / "environment.d" / name).write_text(text)

    def run(self, program: Path, *words: str, **environment: str) -> Outcome:
        done = completed(
            [program, "--lockfile", self.lock, *words],
            cwd=self.root,
            env={
                "PATH": f"{THEIRS.parent}:{os.environ['PATH']}",
                "LC_ALL": "C",
                "HEAT_CONFIG_LIB": str(HOOKS),
                "OS_REFRESH_CONFIG_BASE_DIR": str(self.base),
                "TMPDIR": str(self.root),
                **environment,
            },
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        stderr = done.stderr
        for pattern, plain in STAMPS:
            stderr = pattern.sub(plain, stderr)
        return Outcome(done.returncode, done.stdout, stderr)

    def ours(self, *words: str, **environment: str) -> Outcome:
        return self.run(OURS, *words, **environment)

    def theirs(self, *words: str, **environment: str) -> Outcome:
        return self.run(THEIRS, *words, **environment)


@pytest.fixture
def phases(tmp_path: Path) -> Phases:
    """A base directory without phases."""
    return Phases(tmp_path)
