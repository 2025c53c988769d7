"""Fixtures for the tiny guest and machines made from it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# The helpers beside the tests are imported by name.
sys.path.insert(0, str(Path(__file__).parent))

import tiny_guest
from tiny_machines import Made, machines


@pytest.fixture(scope="session")
def tiny() -> tiny_guest.TinyGuest:
    return tiny_guest.make()


@pytest.fixture
def make(tiny: tiny_guest.TinyGuest, tmp_path: Path) -> Iterator[Callable[..., Made]]:
    with machines(tiny, tmp_path) as factory:
        yield factory
