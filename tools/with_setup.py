"""Restarts a tool with the Python that ``tools/setup`` installed.

Import it before any module outside the standard library.  Exits with status 3 when nothing is
installed.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

PYTHON = Path(__file__).resolve().parents[1] / ".venv" / "bin" / "python"

if importlib.util.find_spec("testinfra") is None:
    if not PYTHON.exists() or Path(sys.prefix) == PYTHON.parents[1]:
        name = Path(sys.argv[0]).name
        print(f"{name}: what it needs is not installed", file=sys.stderr)
        print("  hint: tools/setup test", file=sys.stderr)
        raise SystemExit(3)
    os.execv(PYTHON, [str(PYTHON), *sys.argv])  # noqa: S606
