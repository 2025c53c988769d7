"""The command's view of a cluster's workers: how many cases they can run, and which never."""

from __future__ import annotations

import io
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hotplate.cases.cluster import abilities
from hotplate.cases.cluster.client import ConnectionLost
from hotplate.cases.cluster.parcels import Pending
from hotplate.cases.cluster.plain import Refused
from hotplate.cases.cluster.workers import Workers
from hotplate.cases.table import Case
from hotplate.errors import HostError
from hotplate.image.image_set import ImageSet
from hotplate.report.board import Board

SMALL = {abilities.CORES: 1.0, abilities.MEMORY: 1000.0}
LARGE = {abilities.CORES: 1.0, abilities.MEMORY: 9000.0}


@dataclass
class PlayedClient:
    """Plays Dask's client with given answers."""

    there: list[dict] = field(default_factory=list)
    status: str = "running"
    reader: Future = field(default_factory=Future)

    @property
    def _handle_report_task(self) -> Future:
        return self.reader

    def scheduler_info(self, *, n_workers: int) -> dict:
        assert n_workers == -1
        return {"workers": {str(n): each for n, each in enumerate(self.there)}}


def worker(memory: float, threads: int = 4) -> dict:
    return {
        "nthreads": threads,
        "resources": {abilities.CORES: float(threads), abilities.MEMORY: memory},
    }


def pending(needs: abilities.Resources) -> Pending:
    return Pending(Case("web", Path("web.raw")), needs, ImageSet(()))


@pytest.fixture
def written() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def workers(written) -> Workers:
    return Workers("tcp://here:1", Board(written))


def test_slots_equal_the_threads_of_the_workers(workers):
    assert workers.due
    assert workers.look(PlayedClient([worker(2000), worker(2000, 2)]), {}) == {}
    assert (workers.slots, workers.due) == (6, False)


def test_case_that_no_worker_can_run_is_named(workers):
    out = {"small": pending(SMALL), "large": pending(LARGE)}
    stuck = workers.look(PlayedClient([worker(2000)]), out)
    assert [*stuck] == ["large"]
    assert str(stuck["large"]).startswith('no worker of "tcp://here:1" can run this case: ')


def test_stuck_case_is_found_as_soon_as_it_is_submitted(workers):
    client = PlayedClient([worker(2000)])
    assert workers.look(client, {}) == {}
    assert [*workers.look(client, {"large": pending(LARGE)})] == ["large"]


def test_workers_are_waited_for_after_a_scheduler_restart(workers):
    workers.look(PlayedClient([worker(9000)]), {})
    workers.join_again()
    assert workers.due
    assert workers.look(PlayedClient([worker(2000)]), {"large": pending(LARGE)}) == {}


def test_able_worker_that_left_is_waited_for(workers):
    client = PlayedClient([worker(9000)])
    out = {"large": pending(LARGE)}
    assert workers.look(client, out) == {}
    client.there = [worker(2000)]
    assert workers.look(client, out) == {}


def test_started_case_is_not_stuck(workers):
    begun = pending(LARGE)
    begun.starts.append("one")
    assert workers.look(PlayedClient([worker(2000)]), {"large": begun}) == {}


def test_missing_worker_message_has_the_start_command(workers, written):
    assert workers.look(PlayedClient(), {"large": pending(LARGE)}) == {}
    assert '"tcp://here:1" has no worker yet: hotplate worker tcp://here:1' in written.getvalue()
    assert workers.slots == 1


def test_lost_worker_is_named_with_its_cases_once(workers, written):
    begun = pending(SMALL)
    begun.starts.append("one")
    begun.worker = "1"
    client = PlayedClient([worker(2000), worker(2000)])
    workers.look(client, {"a": begun, "b": pending(SMALL)})
    assert written.getvalue() == ""
    client.there = client.there[:1]
    workers.look(client, {"a": begun, "b": pending(SMALL)})
    workers.look(client, {"a": begun, "b": pending(SMALL)})
    assert written.getvalue() == 'the worker "1" has gone; another one is to run web\n'
    # It may join again, and leave again.
    client.there = [worker(2000), worker(2000)]
    workers.look(client, {"a": begun})
    client.there = []
    workers.look(client, {"a": begun, "b": pending(SMALL)})
    assert written.getvalue().splitlines()[1:] == [
        'the worker "1" has gone; another one is to run web',
        '"tcp://here:1" has no worker any more: hotplate worker tcp://here:1',
    ]


def test_lost_scheduler_raises_connection_lost(workers):
    with pytest.raises(ConnectionLost):
        workers.look(PlayedClient(status="closed"), {})


def test_message_with_more_than_data_is_a_host_error(workers):
    client = PlayedClient()
    client.reader.set_exception(Refused('a pickle of "os.system" came from the cluster'))
    with pytest.raises(HostError, match='a message from "tcp://here:1" cannot be read: a pickle'):
        workers.look(client, {})
