"""Power cuts in a booted guest: no result is lost and no hook runs twice.

Every CI run kills the runner before each write, and at random moments, without a machine:
``tests/hooks/runner/test_crash.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.qemu, pytest.mark.boots, pytest.mark.long]

TOOL = Path(__file__).resolve().parents[2] / "tools" / "crash-matrix"
FIRST = ["received", "started", "finished", "unrecorded", "signal-failed", "random"]


def crash_matrix(image: Path, cuts: int, tmp_path: Path, *words: object, seconds: int) -> dict:
    figures = tmp_path / "figures.json"
    command = [TOOL, image, "--cuts", cuts, "--json", figures, "--directory", tmp_path / "run"]
    subprocess.run(
        [sys.executable, *map(str, [*command, *words])], check=True, timeout=seconds, cwd=tmp_path
    )
    return json.loads(figures.read_text())


def test_power_cut_at_each_boundary_loses_no_result(without_cloud_init, tmp_path):
    """Go through the tool's list of moments twice; without cloud-init a first boot is short."""
    figures = crash_matrix(without_cloud_init, 20, tmp_path, seconds=1800)
    assert figures["problems"] == []
    assert figures["cuts"] == 20
    assert {*FIRST} <= figures["moments"].keys()
    assert figures["deployments"] == 60
    assert set(figures["statuses"]) <= {"COMPLETE", "FAILED"}
