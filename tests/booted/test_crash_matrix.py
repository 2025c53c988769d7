"""Power cuts in a booted guest: no result is lost and no hook runs twice.

Every CI run cuts the power of a disk before each write, and kills the runner at random moments,
without a machine: ``test_power_cut.py`` and ``test_crash.py`` of ``tests/hooks/runner``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.qemu, pytest.mark.boots, pytest.mark.long]

TOOL = Path(__file__).resolve().parents[2] / "tools" / "crash-matrix"


def crash_matrix(image: Path, cuts: int, tmp_path: Path, *words: object, seconds: int) -> dict:
    figures = tmp_path / "figures.json"
    command = [TOOL, image, "--cuts", cuts, "--json", figures, "--directory", tmp_path / "run"]
    subprocess.run(
        [sys.executable, *map(str, [*command, *words])], check=True, timeout=seconds, cwd=tmp_path
    )
    return json.loads(figures.read_text())


def test_power_cuts_lose_no_result(without_cloud_init, tmp_path):
    """Cut while a hook runs, before Heat has answered its signal, in the boot and at random."""
    figures = crash_matrix(without_cloud_init, 4, tmp_path, "--machines", 1, seconds=1800)
    assert figures["problems"] == []
    assert figures["moments"] == {"started": 1, "unrecorded": 1, "boot": 1, "random": 1}
    assert figures["deployments"] == 12
    assert set(figures["statuses"]) <= {"COMPLETE", "FAILED"}
