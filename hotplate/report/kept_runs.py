"""The runs of a command, kept small until the report of all is made."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator, Sequence
from typing import overload

from hotplate.report.html import RunReport
from hotplate.verdict.verdict import Verdict


class KeptRuns(Sequence[RunReport]):
    """What is known of each case that has ended, in the order of the cases.

    A verdict is some ten kilobytes of objects, and less than one packed; each is unpacked when it
    is asked for.

    :param names: of the cases, in their order.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._packed: dict[str, bytes] = {}

    def add(self, name: str, run: RunReport) -> None:
        """Keep the run of a case; it takes the place of an earlier one of its name."""
        self._packed[name] = zlib.compress(pickle.dumps(run))

    def has(self, name: str) -> bool:
        """Whether a case has ended."""
        return name in self._packed

    @property
    def verdicts(self) -> Sequence[Verdict]:
        """The verdict of each."""
        return _Verdicts(self)

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[RunReport]:
        return (self._unpacked(name) for name in self._names if name in self._packed)

    @overload
    def __getitem__(self, index: int) -> RunReport: ...

    @overload
    def __getitem__(self, index: slice) -> list[RunReport]: ...

    def __getitem__(self, index: int | slice) -> RunReport | list[RunReport]:
        names = [name for name in self._names if name in self._packed]
        if isinstance(index, slice):
            return [self._unpacked(name) for name in names[index]]
        return self._unpacked(names[index])

    def _unpacked(self, name: str) -> RunReport:
        run: RunReport = pickle.loads(zlib.decompress(self._packed[name]))  # noqa: S301 - ours
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
