"""tools/check, with stand-ins for what it runs."""

import shutil
import subprocess
from pathlib import Path

CHECK = Path(__file__).resolve().parents[2] / "tools" / "check"
STAND_INS = {
    "tools/setup": 'echo "$1" > profile',
    "tools/count-tests": "exit 1",
    ".venv/bin/sphinx-build": "true",
    ".venv/bin/python": "true",
}


def lay_out(folder: Path, **stand_ins: str) -> None:
    """Put tools/check into a folder, and programs of a line of shell for what it calls."""
    for name, body in (STAND_INS | stand_ins).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    shutil.copy2(CHECK, folder / "tools" / "check")


def check(folder: Path, lane: str) -> str:
    """Run one lane; return what was printed."""
    done = subprocess.run(
        [folder / "tools" / "check", lane], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_documentation_alone_needs_no_test_tool_and_no_test(tmp_path: Path) -> None:
    """tox -e docs ended with 1 for want of results, after it had installed every tool."""
    lay_out(tmp_path)
    check(tmp_path, "docs")
    assert (tmp_path / "profile").read_text() == "docs\n"


def test_six_commits_in_a_row_run_the_whole_long_lane(tmp_path: Path) -> None:
    lay_out(tmp_path, **{".venv/bin/python": 'echo "$@" >> words'})
    git = ("git", "-C", tmp_path, "-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run([*git, "init", "-q"], check=True)
    printed = ""
    for _ in range(6):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one more"], check=True)
        printed += check(tmp_path, "slice")
    parts = sorted(line.split()[-1] for line in (tmp_path / "words").read_text().splitlines())
    assert parts == [f"hash:{part}/6" for part in range(1, 7)]
    assert "slice 3 of 6 of the long lane" in printed
