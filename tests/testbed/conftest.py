"""Shared set-up of the testbed's tests."""

from __future__ import annotations

import sys
from pathlib import Path

# The helpers beside the tests, and the tiny guest.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "machine"))
