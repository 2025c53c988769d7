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
MOMENTS = {
    *("received", "started", "finished", "unrecorded", "signal-failed", "signalled"),
    *("boot", "random"),
}


def crash_matrix(image: Path, cuts: int, tmp_path: Path, *words: object, seconds: int) -> dict:
    figures = tmp_path / "figures.json"
    command = [TOOL, image, "--cuts", cuts, "--json", figures, "--directory", tmp_path / "run"]
    subprocess.run(
        [sys.executable, *map(str, [*command, *words])], check=True, timeout=seconds, cwd=tmp_path
    )
    return json.loads(figures.read_text())


def test_power_cut_at_each_boundary_loses_no_result(without_cloud_init, tmp_path):
    """Cut at each moment of the tool's list once; without cloud-init a first boot is short."""
    figures = crash_matrix(without_cloud_init, 8, tmp_path, "--machines", 1, seconds=1800)
    assert figures["problems"] == []
    assert figures["cuts"] == 8
    assert figures["moments"].keys() == MOMENTS
    assert figures["deployments"] == 24
    assert set(figures["statuses"]) <= {"COMPLETE", "FAILED"}
