"""The files for a command's verdicts on its images: JUnit XML, JSON and TAP."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotplate.errors import HostError, UsageError
from hotplate.report import junit, tap
from hotplate.report.artifacts import json_bytes
from hotplate.text import quoted
from hotplate.verdict.verdict import Verdict

#: Linux follows no more, see path_resolution(7).
LINKS = 40


@dataclass(frozen=True)
class ResultFiles:
    """The destinations of the verdicts.

    :param junit: None for no such file.
    :param json: None for no such file.
    :param several: write a list as JSON, also while there is one verdict.
    :param tap: None for no such file.
    """

    junit: Path | None
    json: Path | None
    several: bool
    tap: Path | None = None

    def begin(self) -> None:
        """Remove the files of an earlier command, so that nobody takes them for this one's.

        :raises UsageError: when a file cannot be made there.
        :raises HostError: when the old one cannot be removed.
        """
        for file in (self.junit, self.json, self.tap):
            if file is None:
                continue
            if str(file) == "-":
                raise UsageError(
                    '"-" names no file here: only --json writes to the standard output',
                    hint="name a file",
                )
            if not file.absolute().parent.is_dir():
                raise UsageError(f'"{file}" cannot be written: there is no such directory')
            if file.is_dir():
                raise UsageError(f'"{file}" cannot be written: it is a directory')
            try:
                if not _is_stream(file):
                    file.unlink(missing_ok=True)
            except OSError as error:
                raise _cannot(file, error) from error

    def write(self, verdicts: Sequence[Verdict]) -> None:
        """Write the verdicts so far, one after the other.

        :raises HostError: when a file cannot be written; the others are.
        """
        problem: HostError | None = None
        for file, document_of in (
            (self.junit, junit.to_xml),
            (self.json, self._as_json),
            (self.tap, tap.to_tap),
        ):
            if file is None:
                continue
            try:
                _write(file, document_of(verdicts))
            except OSError as error:
                problem = problem or _cannot(file, error)
        if problem is not None:
            raise problem

    def _as_json(self, verdicts: Sequence[Verdict]) -> bytes:
        listed = [verdict.to_json() for verdict in verdicts]
        return json_bytes(listed if self.several or len(listed) != 1 else listed[0])


def _write(file: Path, data: bytes) -> None:
    """Write a file; readers meanwhile see the old one, and never a part."""
    if _is_stream(file):
        file.write_bytes(data)
        return
    new = file.with_name(f".{file.name}.new")
    try:
        # Left by a killed command, or a link that somebody else has put there.
        new.unlink(missing_ok=True)
        # Exclusive: a link that somebody puts there meanwhile is not followed.
        with new.open("xb") as stream:
            stream.write(data)
        new.replace(file)
    # A signal, too, leaves no part behind.
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def _is_stream(file: Path) -> bool:
    """Return True for a path to write into, never to remove or replace.

    That is a device, a pipe, or an open file of a process: /dev/stdout is a link into /proc, also
    where it leads on to a regular file.
    """
    path = file.absolute()
    for _ in range(LINKS):
        if path.is_relative_to("/proc"):
            return True
        if not path.is_symlink():
            break
        path = path.parent / path.readlink()
    return file.exists() and not file.is_file()


def _cannot(file: Path, error: OSError) -> HostError:
    return HostError(
        f'"{file}" cannot be written: {error.strerror}',
        hint=f"df -h {quoted(file.parent)}",
    )
