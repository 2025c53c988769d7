"""The workers of a cluster, as the command looks at them now and then."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from distributed import Client

from hotplate.cli.cluster_client import ConnectionLost, unreadable
from hotplate.cli.parcels import Pending
from hotplate.cluster import abilities
from hotplate.errors import HostError
from hotplate.text import clean
from hotplate.timing.deadline import Deadline

if TYPE_CHECKING:
    from hotplate.report.board import Board

LOOK_SECONDS = 5.0
"""From one look at the workers to the next."""

PATIENCE_SECONDS = 60.0
"""As long may no worker be able to run a case, after there was one that could."""


class Workers:
    """How many cases the workers of a cluster can run, and which they cannot.

    :param address: of the scheduler.
    :param board: where it is said that there is none.
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
        """Wait a while for them: a scheduler that starts again does not have them all at once."""
        self._look = Deadline(0, "a look at the workers")
        self._be_patient()

    def _be_patient(self) -> None:
        self._unable = Deadline(PATIENCE_SECONDS, "a worker that can run a case")

    @property
    def due(self) -> bool:
        """Whether they are to be looked at again."""
        return self._look.passed

    def look(self, client: Client, out: Mapping[str, Pending]) -> dict[str, HostError]:
        """See how many cases can run at a time, and which of those that are out never can.

        :param out: the cases that are out, by the key of their task.
        :return: why not, by the key.
        :raises ConnectionLost: when the scheduler has gone.
        :raises HostError: when something came that is not one of Dask's messages.
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
            # Before any is out, nothing is known of what they can run.
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
        """Name each worker that went in the midst of cases, once, and those cases.

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
