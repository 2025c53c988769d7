"""The files in which a command leaves the verdicts on its images: JUnit XML and JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotplate.errors import HostError, UsageError
from hotplate.report import junit
from hotplate.report.artifacts import json_bytes, json_list
from hotplate.verdict.verdict import Verdict


@dataclass(frozen=True)
class ResultFiles:
    """Where the verdicts go.

    :param junit: None for no such file.
    :param json: None for no such file.
    :param several: write a list as JSON, also while there is one verdict.
    """

    junit: Path | None
    json: Path | None
    several: bool

    def begin(self) -> None:
        """Remove what an earlier command left, so that nobody takes it for this one's.

        :raises UsageError: when a file cannot be made there.
        :raises HostError: when the old one cannot be removed.
        """
        for file in (self.junit, self.json):
            if file is None:
                continue
            if not file.absolute().parent.is_dir():
                raise UsageError(f'"{file}" cannot be written: there is no such directory')
            if file.is_dir():
                raise UsageError(f'"{file}" cannot be written: it is a directory')
            try:
                # A device or a pipe is not ours to remove.
                if file.is_file() or file.is_symlink():
                    file.unlink()
            except OSError as error:
                raise _cannot(file, error) from error

    def write(self, verdicts: Sequence[Verdict]) -> None:
        """Write the verdicts that there are.

        :raises HostError: when a file cannot be written; the other one is.
        """
        makers: list[tuple[Path, Callable[[], bytes]]] = []
        if self.junit is not None:
            makers.append((self.junit, lambda: junit.to_xml(verdicts)))
        if self.json is not None:
            makers.append((self.json, lambda: self._as_json(verdicts)))
        problem: HostError | None = None
        # One after the other: of many verdicts each document is large.
        for file, make in makers:
            try:
                file.write_bytes(make())
            except OSError as error:
                problem = problem or _cannot(file, error)
        if problem is not None:
            raise problem

    def _as_json(self, verdicts: Sequence[Verdict]) -> bytes:
        if len(verdicts) == 1 and not self.several:
            return json_bytes(verdicts[0].to_json())
        return json_list(each.to_json() for each in verdicts)


def _cannot(file: Path, error: OSError) -> HostError:
    return HostError(f'"{file}" cannot be written: {error.strerror}', hint=f"df -h {file.parent}")
