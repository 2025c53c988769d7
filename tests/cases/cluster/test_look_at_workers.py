"""The command's view of a cluster's workers: how many cases they can run, and which never."""

from __future__ import annotations

import asyncio
import concurrent.futures
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotplate.cases.cluster import resources
from hotplate.cases.cluster.runner import OnCluster, Submitted
from hotplate.cases.cluster.transfer import Refused
from hotplate.cases.request import Request
from hotplate.cases.side_by_side import CaseEnd
from hotplate.cases.table import Case
from hotplate.errors import HostError, Outcome
from hotplate.interrupts import Interrupts
from hotplate.report.board import Board
from hotplate.settings import Settings

SMALL = {resources.CORES: 1.0, resources.MEMORY: 1000.0}
LARGE = {resources.CORES: 1.0, resources.MEMORY: 9000.0}


@dataclass
class PlayedClient:
    """Plays Dask's client, with given workers."""

    there: list[dict] = field(default_factory=list)
    status: str = "running"
    _handle_report_task: object = None

    def subscribe_topic(self, topic: str, handler: object) -> None:
        """Subscribe to nothing."""

    @property
    def scheduler(self) -> SimpleNamespace:
        async def identity(*, n_workers: int) -> dict:
            assert n_workers == -1
            return {"workers": {str(n): each for n, each in enumerate(self.there)}}

        return SimpleNamespace(identity=identity)


def worker(memory: float, threads: int = 4) -> dict:
    return {
        "nthreads": threads,
        "resources": {resources.CORES: float(threads), resources.MEMORY: memory},
    }


@dataclass
class Command:
    """A command with submitted cases."""

    runner: OnCluster
    written: io.StringIO
    ends: list[CaseEnd]

    def submit(self, name: str, needs: resources.Resources, *, on: str = "") -> None:
        """Submit a case, which may have begun on a worker."""
        case = Submitted(Case(name, Path("web.raw")), needs, key=name, worker=on)
        self.runner._out[name] = case

    def look(self, client: PlayedClient) -> None:
        """Look at the workers."""
        asyncio.run(self.runner._look_at_workers(client))


@pytest.fixture
def command(tmp_path) -> Command:
    written, ends = io.StringIO(), []
    runner = OnCluster(
        Request(Settings(artifacts=tmp_path), on="tcp://here:1", retry_lost=1),
        0,
        interrupts=Interrupts(),
        board=Board(written),
        on_end=ends.append,
    )
    return Command(runner, written, ends)


def test_slots_equal_the_threads_of_the_workers(command):
    assert command.runner._look.passed
    command.look(PlayedClient([worker(2000), worker(2000, 2)]))
    assert command.runner._slots == 6
    assert not command.runner._look.passed


@pytest.mark.parametrize("looks_before", [0, 1])
def test_case_that_no_worker_can_run_has_ended(command, looks_before):
    client = PlayedClient([worker(2000)])
    for _ in range(looks_before):
        command.look(client)
    command.submit("small", SMALL)
    command.submit("large", LARGE)
    command.look(client)
    (end,) = command.ends
    assert (end.case.name, end.verdict.outcome) == ("large", Outcome.HOST)
    assert end.verdict.reasons[0].startswith('no worker of "tcp://here:1" can run this case: ')
    assert [*command.runner._out] == ["small"]


def scheduler_restarts(command: Command, client: PlayedClient) -> None:
    command.submit("large", LARGE)
    error = concurrent.futures.CancelledError()
    command.runner._take_result(client, "large", error)
    assert command.runner._look.passed
    (again,) = command.runner._left
    command.runner._out["large"] = again
    client.there = [worker(2000)]


def able_worker_leaves(command: Command, client: PlayedClient) -> None:
    command.submit("large", LARGE)
    command.look(client)
    client.there = [worker(2000)]


def case_begins(command: Command, client: PlayedClient) -> None:
    command.submit("large", LARGE, on="0")
    client.there = [worker(2000)]


def result_arrives(command: Command, client: PlayedClient) -> None:
    command.submit("large", LARGE, on="0")
    command.runner._out["large"].result = SimpleNamespace(done=lambda: True)
    client.there = []


@pytest.mark.parametrize(
    "happens", [scheduler_restarts, able_worker_leaves, case_begins, result_arrives]
)
def test_case_stays_submitted_when(command, happens: Callable[[Command, PlayedClient], None]):
    client = PlayedClient([worker(9000)])
    command.look(client)
    happens(command, client)
    command.look(client)
    assert [*command.runner._out] == ["large"]
    assert command.ends == []


def test_missing_worker_message_has_the_start_command(command):
    client = PlayedClient()
    command.submit("large", LARGE)
    command.look(client)
    assert command.runner._slots == 1
    assert command.written.getvalue().splitlines() == [
        '"tcp://here:1" has no worker: hotplate worker tcp://here:1'
    ]


def test_cases_of_a_lost_worker_are_tried_again_within_the_limit(command):
    client = PlayedClient([worker(2000)])
    command.submit("begun", SMALL, on="1")
    command.submit("waiting", SMALL)
    command.look(client)
    assert command.written.getvalue() == (
        "begun: the machine was lost, which says nothing about the image; trying once more "
        '(the worker "1" has gone)\n'
    )
    (again,) = command.runner._left
    assert [*command.runner._out] == ["waiting"]
    command.runner._out = {"begun": again}
    again.worker = "2"
    command.look(client)
    (end,) = command.ends
    assert end.verdict.outcome is Outcome.LOST
    assert end.verdict.reasons == (
        'a first try lost its machine: the worker "1" has gone',
        'the worker "2" has gone',
    )


def test_lost_scheduler_is_waited_for(command):
    command.submit("begun", SMALL, on="1")
    command.look(PlayedClient(status="connecting"))
    lost = 'the connection to "tcp://here:1" is lost; trying again\n'
    assert command.written.getvalue() == lost
    assert [*command.runner._out] == ["begun"]


def test_scheduler_that_stays_gone_is_a_host_error(command):
    async def look() -> None:
        reader = asyncio.ensure_future(asyncio.sleep(0))
        await reader
        await command.runner._look_at_workers(PlayedClient([], "closed", reader))

    with pytest.raises(HostError, match='no Dask scheduler answers at "tcp://here:1": it has been'):
        asyncio.run(look())


def test_message_with_more_than_data_is_a_host_error(command):
    async def read_message() -> None:
        raise Refused('a pickle of "os.system" came from the cluster')

    async def look() -> None:
        reader = asyncio.ensure_future(read_message())
        await asyncio.wait([reader])
        await command.runner._look_at_workers(PlayedClient(_handle_report_task=reader))

    with pytest.raises(HostError, match='a message from "tcp://here:1" cannot be read: a pickle'):
        asyncio.run(look())
