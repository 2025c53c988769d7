"""Images that are built once for all tests on this host."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from hotplate.settings import cache_dir

REPOSITORY = Path(__file__).resolve().parents[1]
SECONDS = 1500
UNUSED_DAYS = 30
#: For images of earlier elements and hooks, which another checkout may be using.
REPLACED_DAYS = 0.25


def _fingerprint() -> str:
    """Return one hash of everything that an image is made of."""
    digest = hashlib.sha256()
    parts = (REPOSITORY / "elements", REPOSITORY / "hooks", REPOSITORY / "hotplate" / "image")
    for path in sorted(path for part in parts for path in part.rglob("*") if path.is_file()):
        if "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(REPOSITORY)).encode() + b"\0")
            digest.update(path.read_bytes() + oct(path.stat().st_mode).encode())
    return digest.hexdigest()[:16]


def _not_on_the_mirror(log: Path) -> str:
    """Return the file's name when apt got 404 for an indexed one, as with old releases."""
    refused = re.search(r"E: Failed to fetch \S+/(\S+[.]deb)  404 ", log.read_text())
    return refused[1] if refused else ""


class Images:
    """Builds an image when a test first asks for it."""

    def __init__(self) -> None:
        self.directory = cache_dir() / "test-images"
        self.directory.mkdir(parents=True, exist_ok=True)
        self._fingerprint = _fingerprint()
        self._prune()

    def get(
        self,
        release: str,
        layout: str,
        groups: str = "script",
        *words: str,
        seconds: int = SECONDS,
        variables: Mapping[str, str] | None = None,
    ) -> Path:
        """Return the image of that kind; skip the test when the mirror lacks a package.

        :param variables: more variables of the build's environment.
        """
        kind = [groups, words, *([variables] if variables else [])]
        key = hashlib.sha256(json.dumps(kind).encode()).hexdigest()[:8]
        path = self.directory / f"{release}-{layout}-{key}-{self._fingerprint}.qcow2"
        with (self.directory / f"{release}-{layout}-{key}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                self._prune(f"{release}-{layout}-{key}-", days=REPLACED_DAYS)
                command = [sys.executable, "-m", "hotplate", "build", "--release", release]
                done = subprocess.run(
                    [*command, f"--{layout}", "--group", groups, "-o", path, *words],
                    cwd=REPOSITORY,
                    env={**os.environ, **(variables or {})},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=seconds,
                )
                log = path.with_suffix(".log")
                if done.returncode and log.exists() and (missing := _not_on_the_mirror(log)):
                    pytest.skip(f"the mirror lacks what its own index names: {missing}")
                assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
            # Record the last use in atime; a changed mtime would count as a changed image.
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        return path

    def _prune(self, prefix: str = "", *, days: float = UNUSED_DAYS) -> None:
        """Delete images that no test has used for a while, and the files beside them."""
        for path in self.directory.glob(f"{prefix}*.qcow2"):
            # Another worker may delete them at the same time.
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_atime > days * 86400:
                    for file in self.directory.glob(f"{path.stem}*"):
                        file.unlink(missing_ok=True)
