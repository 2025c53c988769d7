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
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from hotplate.image import mirrors
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


def _key(kind: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(kind).encode()).hexdigest()[:8]


def package_source(release: str) -> dict[str, str]:
    """Return the variables that point diskimage-builder to this host's mirrors."""
    places = mirrors.of_this_host(release)
    options = " ".join(f"--aptopt='{option}'" for option in places.options)
    variables = {"DIB_MMDEBSTRAP_EXTRA_ARGS": options}
    if places.main:
        variables["DIB_DISTRIBUTION_MIRROR"] = places.main
        variables["DIB_APT_SOURCES_CONF"] = places.sources_conf(release)
    return variables


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
        build = [sys.executable, "-m", "hotplate", "build", "--release", release]
        build += [f"--{layout}", "--group", groups, *words, "-o"]
        name = f"{release}-{layout}-{_key(kind)}"
        return self._built(name, self._fingerprint, build, variables or {}, seconds)

    def of_dib(self, release: str, *words: str) -> Path:
        """Return the image that disk-image-create makes of these elements and options."""
        cache = cache_dir() / "plain-dib" / release
        cache.mkdir(parents=True, exist_ok=True)
        variables = {
            **package_source(release),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "DIB_RELEASE": release,
            "DIB_IMAGE_CACHE": str(cache),
            "DIB_MANIFEST_SAVE_DIR": str(cache / "manifests"),
        }
        # -u: the image is not compressed, as it is only booted here.
        build = ["disk-image-create", "-u", *words, "-o"]
        name = f"{release}-dib-{_key(words)}"
        return self._built(name, version("diskimage-builder"), build, variables, SECONDS)

    def _built(
        self, name: str, made_of: str, build: list[str], variables: Mapping[str, str], seconds: int
    ) -> Path:
        """Return the image of that name; build it unless there is one made of the same."""
        path = self.directory / f"{name}-{made_of}.qcow2"
        with (self.directory / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                self._prune(f"{name}-", days=REPLACED_DAYS)
                done = subprocess.run(
                    [*build, path],
                    cwd=REPOSITORY,
                    env={**os.environ, **variables},
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
