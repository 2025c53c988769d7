"""The slices of the long lane are as tools/check has them, and name tests that there are."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
import slices
from xdist.remote import Producer

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


def test_what_takes_longest_is_begun_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "LONGEST", ("slowest", "slow"))
    monkeypatch.setattr(slices, "TOGETHER", ("file.py",))
    names = ["a", "file.py::one", "slow[1]", "slow[2]", "b", "slowest", "file.py::two", "c"]
    assert slices.in_order(names) == [
        *("slowest", "slow[1]", "slow[2]"),
        *("file.py::one", "file.py::two"),
        *("a", "b", "c"),
    ]


def processor_seconds(folder: Path, *words: str | Path) -> dict[str, float]:
    """Run tests with the conftest of all tests; return what its results say of each."""
    results = folder / "results.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-c", str(REPOSITORY / "pyproject.toml"), f"--junit-xml={results}"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "tests")}
    subprocess.run([*command, *words], env=environment, check=True, timeout=100)
    return {
        case.get("name", ""): float(each.get("value", ""))
        for case in ElementTree.parse(results).iter("testcase")
        for each in case.iter("property")
        if each.get("name") == "processor-seconds"
    }


def test_results_say_what_each_test_took_of_the_processors(tmp_path: Path) -> None:
    """A program's that it has started and waited for, too."""
    test = tmp_path / "test_busy.py"
    test.write_text(
        "import subprocess, sys\n"
        "BUSY = 'import time\\nwhile time.process_time() < 0.7: pass'\n"
        "def test_busy(): subprocess.run([sys.executable, '-c', BUSY], check=True)\n"
        "def test_idle(): pass\n"
    )
    took = processor_seconds(tmp_path, "-p", "conftest", test)
    assert took["test_busy"] >= 0.7 > took["test_idle"]


def test_results_of_workers_say_it_too(tmp_path: Path) -> None:
    name = "test_an_error_is_clean_whatever_it_quotes"
    test = f"{REPOSITORY / 'tests/ground/test_text.py'}::{name}"
    assert [*processor_seconds(tmp_path, "-n", "1", test)] == [name]


class Worker:
    """One of pytest-xdist's, of which the scheduler sees so much."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.queue: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_worker_has_all_of_a_file_that_stays_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one test of any other: what is not begun is for whoever has time first."""
    monkeypatch.setattr(slices, "TOGETHER", ("file.py",))
    names = ["a.py::0", *(f"file.py::{number}" for number in range(1, 6)), "a.py::6", "a.py::7"]
    options = SimpleNamespace(loadscopereorder=False)
    config = SimpleNamespace(option=options, getvalue=lambda _: ["2*popen"])
    scheduler = slices.Scheduler(config, Producer("test", enabled=False))  # type: ignore[arg-type]
    workers = [Worker("one"), Worker("two")]
    for worker in workers:
        scheduler.add_node(worker)  # type: ignore[arg-type]
        scheduler.add_node_collection(worker, names)  # type: ignore[arg-type]
    scheduler.schedule()
    assert [worker.queue for worker in workers] == [[0, 6], [1, 2, 3, 4, 5]]
    scheduler.mark_test_complete(workers[0], 0)  # type: ignore[arg-type]
    assert [worker.queue for worker in workers] == [[0, 6, 7], [1, 2, 3, 4, 5]]
