"""The slices of the long lane are as tools/check has them, and name tests that there are."""

import re
from pathlib import Path

import pytest
import slices

from hotplate.shard import Shard

REPOSITORY = Path(__file__).resolve().parents[2]
PARTS = range(1, len(slices.SLICES) + 1)
BEGINNINGS = [beginning for part in slices.SLICES for beginning in part]


def test_there_are_as_many_as_tools_check_runs_in_turn() -> None:
    count = re.search(r"^slices=(\d+)$", (REPOSITORY / "tools/check").read_text(), re.MULTILINE)
    assert count
    assert int(count[1]) == len(slices.SLICES)


def test_tools_check_finds_the_long_tests_by_the_text_of_their_files() -> None:
    marking = [p for p in (REPOSITORY / "tests").rglob("*.py") if "mark.long" in p.read_text()]
    assert marking
    assert [path.name for path in marking if not path.name.startswith("test_")] == []


@pytest.mark.parametrize("part", PARTS)
def test_each_is_the_part_that_shard_takes(part: int) -> None:
    group = slices.group_of(part)
    assert [other for other in PARTS if Shard(other, len(slices.SLICES)).has(group)] == [part]
    for beginning in slices.SLICES[part - 1]:
        assert slices.group(f"{beginning}[more]") == group


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_what_is_listed_has_tests_of_the_long_lane(beginning: str) -> None:
    name, _, function = beginning.partition("[")[0].partition("::")
    text = (REPOSITORY / name).read_text()
    assert "mark.long" in text
    assert f"def {function or 'test_'}" in text


def test_what_is_not_listed_is_in_no_group() -> None:
    assert slices.group("tests/booted/test_new.py::test_new") == ""
    assert [each for part in slices.SLICES for each in sorted(part)] == BEGINNINGS


def test_each_worker_begins_with_one_of_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """As pytest-xdist's WorkStealingScheduling cuts the list: check_schedule of 3.8."""
    monkeypatch.setattr(slices, "LONGEST", ("slowest", "slow"))
    names = ["a1", "a2", "a3", "slow[1]", "slow[2]", "b1", "b2", "slowest", "c1", "c2", "c3"]
    dealt = slices.dealt(names, 3)
    assert dealt == [
        *("slowest", "a1", "a2"),
        *("slow[1]", "a3", "b1", "b2"),
        *("slow[2]", "c1", "c2", "c3"),
    ]
    assert slices.dealt(names, 1)[:3] == ["slowest", "slow[1]", "slow[2]"]
    assert slices.dealt(["a1", "b1"], 3) == ["a1", "b1"]
