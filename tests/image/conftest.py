"""Shared fixtures of the image tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def make_image(tmp_path: Path):
    """Return a function that makes an image file of bytes at offsets."""

    def make(name: str, content: dict[int, bytes], *, size: int = 8 << 20) -> Path:
        path = tmp_path / name
        raw = path if path.suffix == ".raw" else path.with_suffix(".made-from")
        with raw.open("wb") as file:
            file.truncate(size)
            for offset, data in content.items():
                file.seek(offset)
                file.write(data)
        if path != raw:
            subprocess.run(
                ["qemu-img", "convert", "-q", "-c", "-O", "qcow2", raw, path], check=True
            )
            raw.unlink()
        return path

    return make


FAKE_HOOK = """#!/bin/bash
set -eu
sudo mkdir -p "$TARGET_ROOT"/{boot,dev/pts,etc,proc,root,sys,tmp,usr,var/log}
echo kernel | sudo tee "$TARGET_ROOT/boot/vmlinuz-1" > /dev/null
echo initrd | sudo tee "$TARGET_ROOT/boot/initrd.img-1" > /dev/null
echo 12.0 | sudo tee "$TARGET_ROOT/etc/debian_version" > /dev/null
"""


@pytest.fixture
def fake_elements(tmp_path: Path) -> Path:
    """A directory of elements with an operating system that installs at once."""
    element = tmp_path / "elements" / "fake-os"
    add_hook(element, "root.d/10-fake-os", FAKE_HOOK)
    (element / "element-provides").write_text("operating-system\n")
    return element.parent


def add_hook(element: Path, name: str, text: str) -> Path:
    """Write an executable hook into an element."""
    hook = element / name
    hook.parent.mkdir(parents=True, exist_ok=True)
    hook.write_text(text)
    hook.chmod(0o755)
    return hook


@pytest.fixture(name="add_hook")
def add_hook_fixture():
    """:func:`add_hook`, for test modules."""
    return add_hook
