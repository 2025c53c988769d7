"""``hotplate test`` from its request to its exit status: begin to read here.

The steps in their order: collect the cases, with the images that are fetched or built for them;
choose those that run; run them, in turn, side by side or on a cluster; write the results.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TextIO

from hotplate.cases.case_run import CaseRun
from hotplate.cases.cluster import scheduler
from hotplate.cases.collect import collect
from hotplate.cases.images import NamedFiles
from hotplate.cases.last import LastCases
from hotplate.cases.request import Request
from hotplate.cases.results import ResultSink
from hotplate.cases.side_by_side import CaseEnd, SideBySide, how_many
from hotplate.cases.table import Case
from hotplate.errors import Outcome, UsageError
from hotplate.history import FILE, History
from hotplate.interrupts import Interrupts
from hotplate.report.artifacts import remove_old_runs
from hotplate.report.board import Board
from hotplate.report.github import GithubStep
from hotplate.text import clean
from hotplate.verdict.verdict import Verdict


def run_test(
    request: Request,
    interrupts: Interrupts,
    *,
    lines: TextIO | None = None,
    step: GithubStep | None = None,
) -> int:
    """Run a command's cases; each gets a folder and a verdict, however its run ends.

    :param interrupts: end the test of an image, but not the writing of its results.
    :param lines: gets each verdict as a line of JSON; None for no output.
    :param step: gets all verdicts at the end; None outside of a GitHub workflow.
    :return: the verdict's exit status, or the highest of several.
    :raises UsageError: when the request contradicts itself.
    """
    # Collect the cases; their images, fetched or built, are in use until the end of the context.
    with NamedFiles(request.settings.cache, interrupts, remote=bool(request.on)) as images:
        all_cases = collect(request, images, interrupts)
        several = len(all_cases) > 1
        last = LastCases(request.settings.artifacts.absolute())
        # Choose those that run, and their number at a time.
        cases = chosen(request, all_cases, last)
        plan = _plan(request, len(cases))
        board = None
        if cases and plan.side_by_side:
            board = Board(sys.stdout, usual=partial(_usual, request), quiet=request.quiet)
        # Before this command makes a folder, so that none of its own cases is an old run.
        _remove_old_runs(request)
        with ResultSink(
            request, cases, last=last, several=several, board=board, lines=lines
        ) as results:
            if board is not None:
                _run_side_by_side(request, plan, cases, results, interrupts, board)
            else:
                _run_in_turn(request, cases, results, interrupts)
            # Cases without a result: only named, or with a verdict of their own after a signal.
            _leave_out(request, results, interrupts)
        if several and cases:
            results.write_matrix()
        if step is not None:
            step.report([each.verdict for each in results.runs])
        return results.exit_status


def chosen(request: Request, cases: Sequence[Case], last: LastCases) -> Sequence[Case]:
    """Return the cases to run, and print the reason that others do not."""
    running, why = cases, []
    if shard := request.shard:
        running = [each for each in cases if shard.has(each.name)]
        why.append(f"this is the shard hash:{shard.part}/{shard.parts}")
    # After the shard, so that only results of this part's cases are kept for the next command.
    if request.only_failed:
        running = last.failed(running)
        others = "the others passed in the last run"
        why.append(others if last.there else "no earlier run is known")
    if why and not request.quiet:
        print(f"{len(running)} of {len(cases)} cases run; {'; '.join(why)}", flush=True)
    return running


def _usual(request: Request, name: str) -> float | None:
    """Return the seconds that a case took in earlier runs, None when that is not known."""
    return History(request.settings.cache / FILE).expected(f"case-{name}").get("ended")


class _Plan(NamedTuple):
    """Where the cases run.

    :param jobs: the most at a time; 0 for as many as the workers of a cluster can run.
    :param why: the reason for this number.
    :param address: of the scheduler, in Dask's form; "" for this host.
    """

    jobs: int
    why: str = ""
    address: str = ""

    @property
    def side_by_side(self) -> bool:
        return self.jobs > 1 or bool(self.address)


def _plan(request: Request, cases: int) -> _Plan:
    """Return where, and how many at a time, the cases run.

    :raises UsageError: for ``-j`` below 1, ``--retry-lost`` below 0, and when ``--keep`` or
        ``--pause-on-fail`` would wait for the user with several cases at a time, or on workers.
    """
    if request.retry_lost < 0:
        raise UsageError(f"--retry-lost {request.retry_lost} is too small; expected times, or 0")
    address = scheduler.address_of(request.on) if request.on else ""
    # With --os-cloud, --keep leaves the resources in the cloud and waits for nobody.
    waits = (request.keep and not request.os_cloud) or request.pause_on_fail
    if waits and address:
        raise UsageError("--keep and --pause-on-fail leave guests up on this host, not on workers")
    if request.jobs is None:
        if address:
            return _Plan(0, address=address)
        # The capacity of a cloud is not visible from here.
        if waits or request.os_cloud:
            return _Plan(1)
        return _Plan(*how_many(cases, request.settings))
    if request.jobs < 1:
        raise UsageError(f"-j {request.jobs} is too small; expected cases, at least 1")
    if waits and request.jobs > 1:
        raise UsageError("--keep and --pause-on-fail wait for you at each case", hint="-j 1")
    return _Plan(min(request.jobs, cases), "by -j", address)


def _remove_old_runs(request: Request) -> None:
    """Remove old runs, once a command: none of its own cases goes, however many there are."""
    settings = request.settings
    if settings.keep_runs:
        for problem in remove_old_runs(settings.artifacts, settings.keep_runs):
            print(f"hotplate test: {clean(problem)}", file=sys.stderr)


def _run_in_turn(
    request: Request, cases: Sequence[Case], results: ResultSink, interrupts: Interrupts
) -> None:
    """Run the cases in this process, and print each result."""
    for case in cases:
        if results.several:
            print(f"case: {clean(case.name)}", flush=True)
        began = time.monotonic()
        case_run = CaseRun(request, case, interrupts)
        done = case_run.run()
        results.add(CaseEnd(case, done.verdict, case_run.folder, time.monotonic() - began))
        case_run.write_report(done)
        if _is_last(request, done.verdict):
            break


def _is_last(request: Request, verdict: Verdict) -> bool:
    """Return True when no further case is to be started after this verdict."""
    # After a usage error the command itself has to be fixed first.
    return (request.fail_fast and not verdict.passed) or verdict.outcome is Outcome.USAGE


def _run_side_by_side(
    request: Request,
    plan: _Plan,
    cases: Sequence[Case],
    results: ResultSink,
    interrupts: Interrupts,
    board: Board,
) -> None:
    """Run the cases in processes of this host, or on the workers of a cluster."""
    passed: dict[str, dict[str, float]] = {}

    def on_end(end: CaseEnd) -> None:
        results.add(end)
        if end.verdict.passed:
            passed[f"case-{end.case.name}"] = {"ended": end.seconds}
        if _is_last(request, end.verdict):
            runner.more = False

    if not request.quiet:
        board.say([_announcement(plan, len(cases))])
    runner = _runner(request, plan, interrupts, board, on_end)
    runner.run(cases)
    History(request.settings.cache / FILE).record_all(passed)


def _announcement(plan: _Plan, cases: int) -> str:
    if not plan.address:
        return f"{cases} cases, {plan.jobs} at a time ({plan.why})"
    most = f", at most {plan.jobs} at a time" if plan.jobs else ""
    return f'{cases} cases on the workers of "{plan.address}"{most}'


def _runner(
    request: Request,
    plan: _Plan,
    interrupts: Interrupts,
    board: Board,
    on_end: Callable[[CaseEnd], None],
) -> SideBySide:
    kind: type[SideBySide] = SideBySide
    if plan.address:
        # Imported here: Dask is an extra, and slow to load.
        from hotplate.cases.cluster.runner import OnCluster

        kind = OnCluster
        if note := scheduler.warning(plan.address):
            print(f"hotplate test: {note}", file=sys.stderr)
    return kind(request, plan.jobs, interrupts=interrupts, board=board, on_end=on_end)


def _leave_out(request: Request, results: ResultSink, interrupts: Interrupts) -> None:
    """Name the cases that were not started; after a signal each gets a verdict."""
    missing = results.missing
    # After a signal run() only writes the verdict: allowed() raises the pending Interrupted at
    # once.
    for case in missing if interrupts.came else ():
        case_run = CaseRun(request, case, interrupts)
        done = case_run.run()
        results.record(case, done.verdict, case_run.folder)
        case_run.write_report(done)
    if missing and not request.quiet:
        print(f"not begun: {', '.join(clean(each.name) for each in missing)}")
