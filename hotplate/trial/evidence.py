"""The artifacts of a test's server: the files of a ``hotplate test``, in the server's folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from hotplate.errors import Outcome
from hotplate.events.event import Event
from hotplate.report.artifacts import Folder, redacted
from hotplate.report.html import report
from hotplate.stacks.deployment import Deployment
from hotplate.testbed.maker import DISKS
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.trial.guest_probe import follow, save_logs
from hotplate.trial.subject import subject_of
from hotplate.verdict.hook_output import HookOutput
from hotplate.verdict.noticed import Noticed, notice
from hotplate.verdict.verdict import EndedTest, Verdict, of_test


def leave(
    testbed: Testbed,
    server: Server,
    deployments: Sequence[Deployment],
    test: EndedTest,
    *,
    since: int,
    keep_disk: bool = False,
) -> Verdict:
    """Write verdict, report, timeline, requests and templates; after a failure also guest logs.

    :param since: the length of the event log when the server was started.
    :param keep_disk: also when the test passed; it is large.
    """
    if test.problem:
        save_logs(server, server.directory, events=testbed.events)
    stacks = [each.stack.name for each in deployments]
    seen, tracker = follow(testbed.events, server, since=since, stacks=stacks)
    verdict = of_test(
        subject_of(testbed, server, template=test.name),
        tracker,
        test,
        status=deployments[-1].stack.status if deployments else "",
        noticed=_noticed(seen, server),
        now=time.monotonic(),
        artifacts=str(server.directory),
    )
    if test.faulty and verdict.outcome is Outcome.FAILED:
        verdict = replace(verdict, outcome=Outcome.ERROR)
    folder = Folder(server.directory)
    folder.write_json(
        "templates.json",
        [
            {"stack": each.stack.name, "template": each.stack.template.template}
            for each in deployments
        ],
    )
    for each in deployments:
        # Nothing is known of a stack that was deleted.
        with contextlib.suppress(Exception):
            _leave_output(folder, each)
    folder.finish(verdict, seen, report=report(verdict, seen))
    if not test.problem and not keep_disk:
        for name in DISKS:
            (server.directory / name).unlink(missing_ok=True)
    return verdict


def _noticed(seen: Sequence[Event], server: Server) -> tuple[Noticed, ...]:
    """Return the problems of the run; the test may have caused them on purpose."""
    return tuple(
        each
        for each in notice(seen, {server.spec.id: ""})
        if each.kind not in ("guest-reset", "guest-rebooted") or not server.was_rebooted
    )


def _leave_output(folder: Folder, deployment: Deployment) -> None:
    """Write the output of a deployment that failed."""
    if deployment.status == "FAILED":
        secrets = deployment.stack.secrets([deployment.server])
        output = HookOutput.of(deployment.outputs).without(secrets, redacted)
        label = deployment.stack.name
        folder.write_output(output, server="", label=label, group=deployment.group)
