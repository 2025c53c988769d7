"""The memory of a saved state: read once per run, and counted for each restored server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny_disk

from hotplate.errors import HostError
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.machine import admission
from hotplate.machine.snapshot import GuestMemory
from hotplate.settings import AcceleratorChoice, Settings
from hotplate.testbed.compute import LocalCompute

MEMORY_MIB = 64
USED_MIB = 8

pytestmark = pytest.mark.skipif(
    shutil.which("qemu-system-x86_64") is None, reason="needs qemu-system-x86_64"
)


@pytest.fixture
def compute(tmp_path: Path) -> LocalCompute:
    return LocalCompute(
        Image.open(tiny_disk.make(tmp_path / "tiny.raw")),
        settings=Settings(
            memory=MEMORY_MIB, accelerator=AcceleratorChoice.TCG, cache=tmp_path / "cache"
        ),
        directory=tmp_path / "servers",
        events=EventLog(),
    )


def test_lent_memory_is_read_once_and_counted_each_time(
    compute: LocalCompute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "memory"
    with GuestMemory.empty(MEMORY_MIB) as memory:
        os.pwrite(memory.descriptor, b"x" * (USED_MIB << 20), 0)
        memory.save(saved)
    wished: list[int] = []

    def reserve(memory_mib: int, **_: Any) -> None:
        wished.append(memory_mib)
        raise HostError("there is no memory")

    monkeypatch.setattr(admission, "reserve", reserve)

    def restore() -> None:
        spec: Any = SimpleNamespace(id="an-id", name="web", metadata={})
        services: Any = None
        compute.restore(
            spec,
            services,
            state=tmp_path,
            nonce="nonce",
        )

    for _ in range(2):
        with pytest.raises(HostError, match="no memory"):
            restore()
        saved.unlink(missing_ok=True)
    assert wished == [MEMORY_MIB + USED_MIB] * 2
    (lent,) = compute.maker()._lent.values()
    compute.close()
    assert compute.maker()._lent == {}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(lent.descriptor)
