"""The user's own checks, in each guest of a run that has passed so far."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from hotplate.checks.check import CheckResult, UserChecks, sentence_of
from hotplate.checks.run import not_run, run_checks
from hotplate.checks.runner import CheckRunner, GuestAccess
from hotplate.errors import HotplateError, Outcome
from hotplate.guest.base import Guest, GuestGoneError
from hotplate.report.artifacts import Folder, redacted
from hotplate.testbed.server import Server
from hotplate.text import file_name
from hotplate.timing.deadline import DeadlineExceeded
from hotplate.trial.guest_probe import wait_for_boot
from hotplate.verdict.verdict import Verdict

NOT_PASSED = "the run had failed before the checks"


@dataclass(frozen=True)
class CheckedGuest:
    """A guest for the checks.

    :param name: of its server; "" where there is only one.
    :param platforms: see :class:`~hotplate.checks.metadata.GuestFacts`, as ``memory``.
    :param internet: it reaches the Internet.
    """

    access: GuestAccess
    name: str = ""
    platforms: tuple[str, ...] = ("openstack",)
    memory: int = 0
    internet: bool = False


class ServerAccess:
    """The connection to a server of this host: its root shell, or ssh."""

    def __init__(self, server: Server) -> None:
        self._server = server

    @property
    def running(self) -> bool:
        """Return False when the machine is off."""
        return self._server.machine.running

    def connect(self, seconds: float) -> Guest:
        """See :meth:`~hotplate.checks.runner.GuestAccess.connect`."""
        try:
            return self._server.guest(seconds=seconds)
        except OSError as error:
            # A container's channel refuses connections while the container restarts.
            raise GuestGoneError(f"the guest's shell is not there: {error}") from error

    def drop(self) -> None:
        """See :meth:`~hotplate.checks.runner.GuestAccess.drop`."""
        self._server.drop_shell()


def with_checks(
    verdict: Verdict,
    checks: UserChecks,
    guests: Iterable[CheckedGuest],
    *,
    folder: Folder,
    patience: float,
    say: Callable[[str], None],
) -> Verdict:
    """Run the checks where a verdict is good so far, and return the verdict with their results.

    :param guests: asked for only then.
    :param folder: gets the output of each check in a file of its own, below ``checks``.
    :param patience: the longest time to wait for the end of a guest's boot, in seconds.
    :raises HotplateError: when a goss file cannot be used.
    """
    if not checks:
        return verdict
    if not verdict.passed:
        return replace(verdict, checks=tuple(not_run(checks, NOT_PASSED)))
    results: list[CheckResult] = []
    for guest in guests:
        for each in _in_guest(checks, guest, patience=patience, say=say):
            result = replace(each, server=guest.name, output=redacted(each.output))
            results.append(_kept(result, folder, len(results) + 1))
    why = sentence_of(results)
    return replace(
        verdict,
        checks=tuple(results),
        outcome=Outcome.FAILED if why else verdict.outcome,
        reasons=(*verdict.reasons, *filter(None, [why])),
    )


def _in_guest(
    checks: UserChecks, guest: CheckedGuest, *, patience: float, say: Callable[[str], None]
) -> Iterable[CheckResult]:
    # A guest whose boot does not end is checked all the same: a verdict notices it by itself.
    with contextlib.suppress(HotplateError, DeadlineExceeded):
        wait_for_boot(lambda: guest.access.connect(patience), seconds=patience)
    runner = CheckRunner(
        guest.access, platforms=guest.platforms, memory=guest.memory, internet=guest.internet
    )
    today = datetime.datetime.now(datetime.UTC).date()
    return run_checks(checks, runner, say=say, today=today)


def _kept(result: CheckResult, folder: Folder, number: int) -> CheckResult:
    """Write the output of a check to a file; return the result with the file's name."""
    # goss's own document has each test's only line already.
    if not result.output or result.name.startswith("goss: "):
        return result
    # The number: "net/dns" and "net-dns" are two checks.
    plain = [*filter(None, [result.server]), f"{number:02}-{result.name}"]
    name = "/".join(["checks", *map(file_name, plain)]) + ".txt"
    text = f"check {result.label}: {result.status}: {result.reason}\n\n{result.output}\n"
    return replace(result, file=name) if folder.write(name, text) else result
