"""Fixtures for the tiny container; all of them need root."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# The helpers beside the tests, the tiny guest and stations on segments.
sys.path.insert(0, str(Path(__file__).parents[1] / "network"))
sys.path.insert(0, str(Path(__file__).parents[1] / "machine"))
sys.path.insert(0, str(Path(__file__).parent))

import tiny_container
from tiny_container import Made

from hotplate.container.root import Root


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the tiny root."""
    if platform.machine() != "x86_64":
        pytest.skip("the tiny container's program is for x86_64")
    return tiny_container.plant(tmp_path_factory.mktemp("tiny") / "tree")


@pytest.fixture(scope="session")
def tiny(tree: Path) -> Root:
    return tiny_container.root_of(
        tiny_container.make_ext4(tree, tree.parent / "root.ext4", "-O", "^has_journal")
    )


@pytest.fixture
def make(tiny: Root, tmp_path: Path) -> Iterator[Callable[..., Made]]:
    with tiny_container.containers(tiny, tmp_path) as factory:
        yield factory
