"""Tests of a room are in the folder of its name, so that they are found without a list."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: Folders of tests of built images, of their contents, and of the repository.
OF_NO_ROOM = {"booted", "elements", "ground", "hooks", "seeds"}


def folders(place: Path) -> set[str]:
    return {each.parent.name for each in place.glob("*/*.py")}


@pytest.mark.parametrize("room", sorted(folders(ROOT / "hotplate")))
def test_each_room_has_tests_in_its_folder(room):
    assert [*(ROOT / "tests" / room).rglob("test_*.py")]


def test_each_folder_of_tests_is_named_after_a_room():
    assert folders(ROOT / "tests") - OF_NO_ROOM <= folders(ROOT / "hotplate")
