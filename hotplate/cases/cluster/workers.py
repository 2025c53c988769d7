"""The workers of a cluster, checked periodically by the command."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from distributed import Client

from hotplate.cases.cluster import abilities
from hotplate.cases.cluster.client import ConnectionLost, unreadable
from hotplate.cases.cluster.parcels import Pending
from hotplate.errors import HostError
from hotplate.text import clean
from hotplate.timing.deadline import Deadline

if TYPE_CHECKING:
    from hotplate.report.board import Board

LOOK_SECONDS = 5.0
"""The time between two checks of the workers."""

PATIENCE_SECONDS = 60.0
"""How long no worker may be able to run a case, after one was."""


class Workers:
    """Finds how many cases the workers of a cluster can run, and which cases they cannot run.

    :param address: of the scheduler.
    :param board: shows that there is no worker.
    :ivar slots: how many cases can run at a time.
    """

    def __init__(self, address: str, board: Board) -> None:
        self.slots = 1
        self._address = address
        self._board = board
        self._look = Deadline(0, "a look at the workers")
        self._unable = Deadline(0, "a worker that can run a case")
        self._seen = False
        self._gone: set[str] = set()

    def join_again(self) -> None:
        """Wait for them again: a restarted scheduler does not have them all at once."""
        self._look = Deadline(0, "a look at the workers")
        self._be_patient()

    def _be_patient(self) -> None:
        self._unable = Deadline(PATIENCE_SECONDS, "a worker that can run a case")

    @property
    def due(self) -> bool:
        """Return whether they are to be checked again."""
        return self._look.passed

    def look(self, client: Client, out: Mapping[str, Pending]) -> dict[str, HostError]:
        """Update the number of concurrent cases, and find submitted cases that no worker can run.

        :param out: the submitted cases, by the key of their task.
        :return: the reasons, by the key.
        :raises ConnectionLost: when the scheduler is gone.
        :raises HostError: when a message was received that is not one of Dask's.
        """
        self._look = Deadline(LOOK_SECONDS, "a look at the workers")
        if client.status != "running":
            raise ConnectionLost
        if problem := unreadable(client):
            raise HostError(
                f'a message from "{self._address}" cannot be read: {problem}',
                hint='let no other worker in: see "TLS" in docs/cluster.rst',
            )
        workers = client.scheduler_info(n_workers=-1)["workers"]
        there = [dict(each["resources"]) for each in workers.values()]
        self._seen = self._seen or bool(workers)
        self._tell_who_has_gone(workers, out)
        self.slots = max(1, sum(each["nthreads"] for each in workers.values()))
        stuck = {
            key: why
            for key, each in out.items()
            if not each.starts and (why := abilities.missing(each.needs, there))
        }
        if not stuck:
            # Before any is submitted, it is unknown what they can run.
            if out:
                self._be_patient()
        elif self._unable.passed and there:
            return {key: self._cannot(why) for key, why in stuck.items()}
        elif not there:
            lacks = "has no worker any more" if self._seen else "has no worker yet"
            self._board.say([f'"{self._address}" {lacks}: hotplate worker {self._address}'])
            self._look = Deadline(PATIENCE_SECONDS / 2, "a look at the workers")
        return {}

    def _tell_who_has_gone(self, there: Collection[str], out: Mapping[str, Pending]) -> None:
        """Report each worker that left during cases, once, with those cases.

        Dask runs them again when another worker is free for them.
        """
        cases: dict[str, list[str]] = {}
        for each in out.values():
            if each.starts and each.worker not in there:
                cases.setdefault(each.worker, []).append(each.case.name)
        for worker, names in cases.items():
            if worker not in self._gone:
                gone = f'the worker "{worker}" has gone; another one is to run {", ".join(names)}'
                self._board.say([clean(gone)])
        self._gone = set(cases)

    def _cannot(self, why: str) -> HostError:
        return HostError(
            f'no worker of "{self._address}" can run this case: {why}',
            hint="hotplate worker, on a host that has it; hotplate doctor says what a host has",
        )
