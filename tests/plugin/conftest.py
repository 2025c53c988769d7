"""Runs pytest with the plug-in inside a test, as another repository would."""

from __future__ import annotations

import pytest


@pytest.fixture
def project(pytester, monkeypatch, tmp_path):
    """A user's repository, with artifacts and a cache of its own."""
    monkeypatch.setenv("HOTPLATE_CACHE", str(tmp_path / "cache"))
    # Its plug-in takes two thirds of the start of pytest, and is not needed here.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:hypothesispytest")
    pytester.makeini(
        "[pytest]\naddopts = -p no:cacheprovider -p no:xdist --import-mode=importlib\n"
    )
    return pytester


@pytest.fixture
def raw_image():
    """Makes a disk with a boot sector, which is enough to open it as an image."""

    def make(path):
        disk = bytearray(4 << 20)
        disk[0:2] = b"\xeb\x63"
        # One partition of the type Linux, bootable (MBR).
        disk[446:462] = (
            bytes([0x80, 0, 2, 0, 0x83, 0, 0, 0])
            + (2048).to_bytes(4, "little")
            + (6144).to_bytes(4, "little")
        )
        disk[510:512] = b"\x55\xaa"
        path.write_bytes(disk)
        return path

    return make
