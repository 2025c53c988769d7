"""Run all checks of a case in one guest: begin to read here."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hotplate.checks import goss
from hotplate.checks.check import CheckResult, CheckStatus, UserCheck, UserChecks
from hotplate.checks.known_failures import entry_for
from hotplate.checks.runner import CheckRunner


def run_checks(
    checks: UserChecks,
    runner: CheckRunner,
    *,
    say: Callable[[str], None],
    today: datetime.date,
) -> list[CheckResult]:
    """Run the checks, one after the other, and return their results.

    :param say: called with each result, in a sentence.
    :param today: decides which known failures have expired.
    :raises UsageError: when a goss file, or the goss program, cannot be used.
    """
    results = []
    for check in checks.in_order:
        for each in _results_of(check, checks, runner):
            result = with_known(each, checks, runner, today=today)
            why = f": {result.reason}" if result.reason else ""
            say(f'check "{result.name}" {result.status} after {result.seconds:.1f} s{why}')
            results.append(result)
    return results


def _results_of(check: UserCheck, checks: UserChecks, runner: CheckRunner) -> Iterator[CheckResult]:
    if check is not checks.goss:
        yield runner.run(check)
        return
    done = runner.run(check, first_bytes=goss.DOCUMENT_BYTES)
    yield from goss.results(done, file=check.metadata.description)


def with_known(
    result: CheckResult, checks: UserChecks, runner: CheckRunner, *, today: datetime.date
) -> CheckResult:
    """Return a result with the remark of the list of known failures, if it is on it."""
    if result.status is CheckStatus.SKIPPED or not checks.known:
        return result
    entry = entry_for(result.name, checks.known, architecture=runner.architecture)
    if entry is None:
        return result
    if result.status is CheckStatus.PASSED:
        return replace(
            result, reason=f'it is listed as known to fail ("{entry.pattern}", {entry.tracker})'
        )
    if entry.has_expired(today):
        return replace(
            result,
            reason=f"{result.reason}; known until {entry.snooze}, which has passed: "
            f"{entry.tracker}",
        )
    return replace(
        result,
        status=CheckStatus.KNOWN,
        reason=f"{result.reason}; known until {entry.snooze}: {entry.tracker}",
    )


def not_run(checks: UserChecks, why: str) -> Sequence[CheckResult]:
    """Return the results of checks that no guest could run."""
    return [CheckResult(each.name, CheckStatus.SKIPPED, reason=why) for each in checks.in_order]
