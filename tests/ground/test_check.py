"""tools/check, with stubs for the programs that it runs."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parents[2] / "tools" / "check"
PROGRAMS = (
    "ruff",
    "lint-imports",
    "shellcheck",
    "hotplate",
    "doc8",
    "codespell",
    "mypy",
    "sphinx-build",
)
STAND_INS = {
    "tools/setup": 'echo "$1" > profile',
    "tools/count-tests": "exit 1",
    "tools/unlocked": "echo newest",
    ".venv/bin/python": 'echo "$*" >> words',
    ".venv/bin/git": 'case "$1" in ls-files) printf "tools/check\\0" ;; *) echo 1 ;; esac',
    **{f".venv/bin/{name}": "true" for name in PROGRAMS},
}


def lay_out(folder: Path, **stand_ins: str) -> None:
    """Put tools/check into a folder, with one-line shell stubs for the programs it calls."""
    for name, body in (STAND_INS | stand_ins).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    shutil.copy2(CHECK, folder / "tools" / "check")


def check(folder: Path, *lanes: str, status: int = 0) -> str:
    """Run the lanes and return the output."""
    done = subprocess.run(
        [folder / "tools" / "check", *lanes], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_documentation_lane_needs_no_test_tool_and_no_test(tmp_path: Path) -> None:
    """Once, tox -e docs installed every tool and then ended with 1 for lack of results."""
    lay_out(tmp_path)
    check(tmp_path, "docs")
    assert (tmp_path / "profile").read_text() == "docs\n"


@pytest.mark.parametrize("words", [(), ("--all",)], ids=["plain", "all"])
def test_long_lane_is_run_with_all_only(tmp_path: Path, words: tuple[str, ...]) -> None:
    lay_out(tmp_path)
    lanes = re.findall(r"^ +(\w+) +passed", check(tmp_path, *words), re.MULTILINE)
    assert lanes[:8] == [*("lint", "types", "docs", "unit", "hooks", "cloud", "machine", "image")]
    assert lanes[8:] == (["long"] if words else [])


def test_newest_packages_are_tried_when_asked_for_only(tmp_path: Path) -> None:
    lay_out(tmp_path)
    assert "newest" not in check(tmp_path, "--all")
    assert "newest" in check(tmp_path, "unlocked")


@pytest.mark.parametrize("words", [("--quick",), ("unit", "types"), ("unit",)], ids=" ".join)
def test_quick_run_leaves_slow_tests_out(tmp_path: Path, words: tuple[str, ...]) -> None:
    lay_out(tmp_path)
    check(tmp_path, *words)
    (unit,) = re.findall(r".*/unit\.xml .*", (tmp_path / "words").read_text())
    assert ("and not slow" in unit) == ("--quick" in words)


def test_failed_lane_is_named_and_the_others_run(tmp_path: Path) -> None:
    lay_out(tmp_path, **{".venv/bin/python": 'case "$*" in *tests/hooks*) exit 1 ;; esac'})
    printed = check(tmp_path, "hooks", "machine", status=1)
    assert re.search(r"hooks +FAILED +\d+ s\n +machine +passed +\d+ s\n", printed)
    assert printed.endswith("failed: hooks\n")


def test_lane_ends_at_its_first_failure(tmp_path: Path) -> None:
    """bash ignores "set -e" in a condition, and a lane is several commands."""
    lay_out(tmp_path, **{".venv/bin/ruff": "exit 1", ".venv/bin/doc8": "echo doc8 ran"})
    assert "doc8 ran" not in check(tmp_path, "lint", status=1)
