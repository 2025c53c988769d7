"""Memory reservations between processes: they queue, and none outlives its owner."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hotplate import host_tools
from hotplate.errors import HostError
from hotplate.machine import admission
from hotplate.machine.admission import OVERHEAD_MIB, host_mib, live_reservations, max_mib, reserve
from hotplate.timing.deadline import Deadline, DeadlineExceeded

BUDGET = 2 * (500 + OVERHEAD_MIB)

OWNER = """
import sys, time
from pathlib import Path
from hotplate.timing.deadline import Deadline
from hotplate.machine.admission import reserve
with reserve(500, directory=Path(sys.argv[1]), deadline=Deadline(5, "memory")):
    print("held", flush=True)
    time.sleep(1000)
"""


@pytest.fixture(autouse=True)
def room_for_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this process a host with memory for two machines."""
    monkeypatch.setattr(admission, "host_mib", lambda: BUDGET)
    monkeypatch.setattr(admission, "SHARE", 1)


def ask(directory: Path, mib: int = 500, *, seconds: float = 0.5, **options: object):
    return reserve(
        mib,
        directory=directory,
        deadline=Deadline(seconds, "memory for a machine"),
        **options,  # type: ignore[arg-type]
    )


def test_third_machine_waits_with_a_message_when_two_fit(tmp_path: Path) -> None:
    messages: list[str] = []
    with ask(tmp_path), ask(tmp_path):
        assert live_reservations(tmp_path) == [500 + OVERHEAD_MIB] * 2
        with (
            pytest.raises(DeadlineExceeded, match=f"hold {BUDGET} of {BUDGET} MiB"),
            ask(tmp_path, waiting=messages.append),
        ):
            pass
    assert messages == [
        f"waiting for memory: 2 machines hold {BUDGET} of {BUDGET} MiB, "
        f"and {500 + OVERHEAD_MIB} MiB are needed"
    ]
    assert live_reservations(tmp_path) == []


def test_third_machine_is_admitted_when_one_ends(tmp_path: Path) -> None:
    waits, done = threading.Event(), threading.Event()

    def third() -> None:
        with ask(tmp_path, seconds=120, waiting=lambda _: waits.set()):
            done.set()

    with ask(tmp_path):
        with ask(tmp_path):
            thread = threading.Thread(target=third)
            thread.start()
            assert waits.wait(60)
            assert not done.is_set()
        assert done.wait(60)
    thread.join()


def test_machine_behind_another_in_the_queue_has_a_message_too(tmp_path: Path) -> None:
    first, second = threading.Event(), threading.Event()
    messages: list[str] = []

    def wait(spoke: threading.Event) -> None:
        def tell(text: str) -> None:
            messages.append(text)
            spoke.set()

        with ask(tmp_path, seconds=120, waiting=tell):
            pass

    threads = [threading.Thread(target=wait, args=(each,)) for each in (first, second)]
    with ask(tmp_path), ask(tmp_path):
        for thread, spoke in zip(threads, (first, second), strict=True):
            thread.start()
            assert spoke.wait(60)
    for thread in threads:
        thread.join()
    assert "come before this one" in messages[1]


def test_machine_alone_is_always_admitted(tmp_path: Path) -> None:
    with ask(tmp_path, BUDGET):
        assert live_reservations(tmp_path) == [BUDGET + OVERHEAD_MIB]


def test_machine_too_large_for_the_host_is_refused_without_blocking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "max_mib", lambda: 500)
    with (
        ask(tmp_path),
        pytest.raises(HostError, match="a machine of 501 MiB is more than the 500 MiB"),
        ask(tmp_path, 501, seconds=120),
    ):
        pass


def test_killed_owner_holds_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, tmp_path], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        assert live_reservations(tmp_path) == [500 + OVERHEAD_MIB]
        owner.kill()
    assert live_reservations(tmp_path) == []
    assert list(tmp_path.glob("*.mib")) == []


def test_unusable_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot be reserved"), ask(tmp_path / "file"):
        pass


def test_host_memory_is_the_smaller_of_host_and_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    monkeypatch.setattr(host_tools, "MEMINFO", meminfo)
    monkeypatch.setattr(admission, "CONTAINER_LIMIT", limit)
    meminfo.write_text("MemTotal:       8388608 kB\nMemFree: 1 kB\n")
    assert host_mib() == 8192
    limit.write_text("max\n")
    assert host_mib() == 8192
    limit.write_text(str(2 << 30))
    assert host_mib() == 2048


@pytest.mark.parametrize(("mode", "most"), [("0", 9216), ("1", None), ("2", 9216), ("", None)])
def test_limit_of_one_process_depends_on_overcommit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, most: int | None
) -> None:
    meminfo, overcommit = tmp_path / "meminfo", tmp_path / "overcommit_memory"
    monkeypatch.setattr(host_tools, "MEMINFO", meminfo)
    monkeypatch.setattr(admission, "OVERCOMMIT", overcommit)
    meminfo.write_text("MemTotal: 8388608 kB\nMemFree: 1 kB\nSwapTotal: 1048576 kB\n")
    if mode:
        overcommit.write_text(f"{mode}\n")
    assert max_mib() == most
