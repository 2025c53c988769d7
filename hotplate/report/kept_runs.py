"""The runs of a command, kept on the disk until the report of all is made."""

from __future__ import annotations

import pickle
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self, overload

from hotplate.report.html import RunReport
from hotplate.report.spool import Spool
from hotplate.verdict.verdict import Verdict

_NOWHERE = -(1 << 62)
"""The place of a run that is not kept."""


class KeptRuns(Sequence[RunReport]):
    """The runs of the cases that have ended, in the order of the cases.

    A verdict is some ten kilobytes of objects.  Only the place of each is in memory; each is read
    when it is asked for.

    ::

        with KeptRuns(["web.raw", "db.raw"], folder=artifacts) as runs:
            runs.add("db.raw", RunReport(verdict, ()))
            ...
            files.write(runs.verdicts)

    :param names: of the cases, in their order.
    :param folder: the folder of their file; None for in memory.
    """

    def __init__(self, names: Sequence[str], *, folder: Path | None = None) -> None:
        self._numbers = {name: number for number, name in enumerate(names)}
        self._places = array("q", [_NOWHERE]) * len(names)
        self._count = 0
        self._spool = Spool(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop all runs."""
        self._places = array("q", [_NOWHERE]) * len(self._places)
        self._count = 0
        self._spool.close()

    def add(self, name: str, run: RunReport) -> None:
        """Keep the run of a case; it replaces an earlier one of its name."""
        number = self._numbers[name]
        self._count += self._places[number] == _NOWHERE
        self._places[number] = self._spool.add(zlib.compress(pickle.dumps(run)))

    def has(self, name: str) -> bool:
        """Return True when a case has ended."""
        number = self._numbers.get(name)
        return number is not None and self._places[number] != _NOWHERE

    @property
    def verdicts(self) -> Sequence[Verdict]:
        """The verdict of each."""
        return _Verdicts(self)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[RunReport]:
        return map(self._read, self._there())

    @overload
    def __getitem__(self, index: int) -> RunReport: ...

    @overload
    def __getitem__(self, index: slice) -> list[RunReport]: ...

    def __getitem__(self, index: int | slice) -> RunReport | list[RunReport]:
        places = [*self._there()]
        if isinstance(index, slice):
            return [self._read(place) for place in places[index]]
        return self._read(places[index])

    def _there(self) -> Iterator[int]:
        """Yield the places of the runs."""
        return (place for place in self._places if place != _NOWHERE)

    def _read(self, place: int) -> RunReport:
        run: RunReport = pickle.loads(zlib.decompress(self._spool.read(place)))  # noqa: S301 - ours
        return run


class _Verdicts(Sequence[Verdict]):
    """The verdicts of runs that are kept."""

    def __init__(self, runs: KeptRuns) -> None:
        self._runs = runs

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Verdict]:
        return (run.verdict for run in self._runs)

    @overload
    def __getitem__(self, index: int) -> Verdict: ...

    @overload
    def __getitem__(self, index: slice) -> list[Verdict]: ...

    def __getitem__(self, index: int | slice) -> Verdict | list[Verdict]:
        if isinstance(index, slice):
            return [run.verdict for run in self._runs[index]]
        return self._runs[index].verdict
