"""Cases whose worker dies or hangs, or whose scheduler restarts."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Iterator

import played_cases
import pytest
from played_cases import Played, runs, wait_until
from played_cluster import Cluster, cluster

#: Seconds after which the scheduler gives up a silent worker; 300 by default.
TTL = 8


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler, in the folder of the played command."""
    folder = Played(tmp_path_factory.mktemp("cluster")).folder
    with cluster(folder) as started:
        yield started


@pytest.fixture
def on(shared: Cluster) -> Iterator[Cluster]:
    """The scheduler without workers; a test gives its workers names of their own."""
    for each in (*shared.folder.glob("*.tries"), shared.folder / "free"):
        each.unlink(missing_ok=True)
    if shared.scheduler.poll() is not None:
        shared.start_scheduler()
    yield shared
    shared.stop_workers()


def stream_of(process) -> list[dict]:
    """Read the verdicts that a command streams, to its end."""
    out, err = process.communicate(timeout=played_cases.SECONDS * 2)
    return [json.loads(line) for line in out.splitlines()], err


def free(played: Played) -> None:
    """Let the waiting cases continue."""
    (played.folder / "free").touch()


@pytest.mark.slow
def test_killed_worker_loses_no_verdict(on):
    lose_worker(on, signal.SIGKILL)


@pytest.mark.slow
def test_worker_that_stands_still_loses_no_verdict(tmp_path):
    Played(tmp_path)
    with cluster(tmp_path, ttl=TTL) as on:
        lose_worker(on, signal.SIGSTOP)


def lose_worker(on: Cluster, how: signal.Signals) -> None:
    """Send the signal to the worker that has a case, and await the verdicts."""
    played = Played(on.folder)
    first = on.start_worker("first")
    images = played.images(one="until free", two="pass")
    process = played.start(*images, "--on", on.address, "--json", "-")
    wait_until(lambda: played.tries("one"))
    before = on.tried()
    on.start_worker("second")
    first.send_signal(how)
    wait_until(lambda: len(played.tries("one")) == 2)
    free(played)
    verdicts, err = stream_of(process)
    assert process.returncode == 0, err
    assert Counter(each["case"] for each in verdicts) == {"one.raw": 1, "two.raw": 1}
    one = next(each for each in verdicts if each["case"] == "one.raw")
    (why,) = one["reasons"]
    assert why.startswith('a first try lost its machine: the worker "tcp://127.0.0.1:')
    assert why.endswith('" has gone')
    assert "one.raw: the machine was lost, which says nothing about the image" in err
    first.send_signal(signal.SIGCONT)
    wait_until(lambda: not any(map(runs, before)))


@pytest.mark.slow
def test_restarted_scheduler_runs_every_case(on):
    played = Played(on.folder)
    on.start_worker("rejoins")
    images = played.images(one="until free", two="until free", three="pass")
    process = played.start(*images, "--on", on.address, "--json", "-")
    wait_until(lambda: played.tries("one") and played.tries("two"))
    before = on.tried()
    on.scheduler.kill()
    on.scheduler.wait()
    wait_until(lambda: not any(map(runs, before)))
    on.start_scheduler()
    wait_until(lambda: len(played.tries("one")) == 2 and len(played.tries("two")) == 2)
    free(played)
    verdicts, err = stream_of(process)
    assert process.returncode == 0, err
    assert Counter(each["case"] for each in verdicts) == dict.fromkeys(images, 1)
    lost = [each for each in verdicts if each["reasons"]]
    assert {each["case"] for each in lost} == {"one.raw", "two.raw"}
    assert "is lost; trying again" in err


@pytest.mark.long
def test_twelve_cases_survive_all_losses(tmp_path):
    """One of three workers is killed, one hangs, and the scheduler restarts."""
    played = Played(tmp_path)
    with cluster(tmp_path, ttl=TTL) as on:
        words = ("--cores", "8", "--memory-mib", "20000")
        on.start_workers("first", "second", "third", words=words)
        names = [f"case{number}" for number in range(12)]
        images = played.images(**dict.fromkeys(names, "until free"))
        process = played.start(
            *images, "--on", on.address, "--json", "-", "--junit", "j.xml", "--retry-lost", "9"
        )
        wait_until(lambda: len(on.tried()) == 12)
        on.workers["first"].kill()
        on.workers["second"].send_signal(signal.SIGSTOP)
        wait_until(lambda: len(on.tried()) > 12)
        on.scheduler.kill()
        on.scheduler.wait()
        on.start_scheduler()
        tried = len(on.tried())
        wait_until(lambda: len(on.tried()) > tried)
        on.workers["second"].send_signal(signal.SIGCONT)
        free(played)
        verdicts, err = stream_of(process)
        assert process.returncode == 0, err
        assert Counter(each["case"] for each in verdicts) == dict.fromkeys(images, 1)
        assert {each["outcome"] for each in verdicts} == {"passed"}
        again = {each["case"] for each in verdicts if each["reasons"]}
        assert again
        for each in again:
            assert f"{each}: the machine was lost, which says nothing about the image" in err
        wait_until(lambda: not any(map(runs, on.tried())))


@pytest.mark.slow
def test_signal_without_a_scheduler_leaves_each_case_a_verdict(on):
    played = Played(on.folder)
    on.start_worker("waits")
    images = played.images(one="wait", two="wait", three="wait")
    process = played.start(*images, "--on", on.address, "--json", "v.json")
    wait_until(lambda: len(on.tried()) == 2)
    on.scheduler.kill()
    on.scheduler.wait()
    wait_until(lambda: not any(map(runs, on.tried())))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=played_cases.SECONDS * 2)
    assert process.returncode == 130, (out, err)
    outcomes = {name: each["outcome"] for name, each in played.verdicts().items()}
    assert outcomes == dict.fromkeys(images, "interrupted")
