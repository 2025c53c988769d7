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


def test_the_documentation_alone_needs_no_test_tool_and_no_test(tmp_path: Path) -> None:
    """tox -e docs ended with 1 for want of results, after it had installed every tool."""
    for name, body in STAND_INS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    shutil.copy2(CHECK, tmp_path / "tools" / "check")
    done = subprocess.run(
        [tmp_path / "tools" / "check", "docs"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "profile").read_text() == "docs\n"
