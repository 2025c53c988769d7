"""A check of the user's, and its result, as plain data that travels to workers and into reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from hotplate.checks.known_failures import KnownFailure
from hotplate.checks.metadata import NO_METADATA, CheckMetadata
from hotplate.text import clean


class CheckStatus(StrEnum):
    """The result of a check, in a word for people and JSON."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    KNOWN = "known failure"


@dataclass(frozen=True)
class DataFile:
    """A file that a check finds below ``$KOLA_EXT_DATA``.

    :param path: below that directory, with ``/`` between its parts.
    """

    path: str
    content: bytes
    mode: int = 0o644


@dataclass(frozen=True)
class UserCheck:
    """One executable, with the files beside it.

    :param name: unique in the run.
    :param file: the name of the executable.
    :param program: its content.
    :param data: the files of the directory ``data`` beside it.
    """

    name: str
    file: str
    program: bytes
    metadata: CheckMetadata = NO_METADATA
    data: tuple[DataFile, ...] = ()


@dataclass(frozen=True)
class UserChecks:
    """All checks of a case.

    :param programs: the executables, in their order.
    :param goss: the check that runs goss; None without one.
    :param known: the failures that are known.
    """

    programs: tuple[UserCheck, ...] = ()
    goss: UserCheck | None = None
    known: tuple[KnownFailure, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.programs or self.goss)

    @property
    def in_order(self) -> tuple[UserCheck, ...]:
        """Return the checks in the order in which they run; goss first, as it changes nothing."""
        return (*((self.goss,) if self.goss else ()), *self.programs)


NO_CHECKS = UserChecks()


@dataclass(frozen=True)
class CheckResult:
    """The result of one check, or of one test of a goss file.

    :param seconds: from its start to its end, with its reboots.
    :param reason: why it failed or was skipped, or a remark; without the check's name.
    :param output: standard output and error together, of bounded length; it may hold secrets.
    :param server: the name of the server, "" where there is only one.
    :param file: the file with the output, in the folder of the run; "" for none.
    """

    name: str
    status: CheckStatus
    seconds: float = 0.0
    reason: str = ""
    output: str = ""
    server: str = ""
    file: str = ""

    @property
    def label(self) -> str:
        """Return its name, with that of the server where there are several."""
        return clean(f"{self.name} on {self.server}" if self.server else self.name)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON types; the output is left out, as a verdict may be printed."""
        return {
            "name": self.name,
            "server": self.server,
            "status": str(self.status),
            "seconds": round(self.seconds, 3),
            "reason": self.reason,
            "output": self.file,
        }


def failed(results: Sequence[CheckResult]) -> list[CheckResult]:
    """Return those that fail a run."""
    return [each for each in results if each.status is CheckStatus.FAILED]


def sentence_of(results: Sequence[CheckResult]) -> str:
    """Return why a run with these results failed, "" when no check did.

    >>> one = CheckResult("dns", CheckStatus.FAILED, reason="it ended with status 1")
    >>> sentence_of([one])
    'the check "dns" failed: it ended with status 1'
    >>> sentence_of([one, CheckResult("web", CheckStatus.FAILED)])
    '2 checks failed: "dns", "web"'
    """
    bad = failed(results)
    if len(bad) == 1:
        return f'the check "{bad[0].label}" failed: {bad[0].reason}'
    names = ", ".join(f'"{each.label}"' for each in bad)
    return f"{len(bad)} checks failed: {names}" if bad else ""
