"""The part that a run on this host and a run in a cloud have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NotRequired, TypedDict, Unpack

from hotplate.checks.check import NO_CHECKS, UserChecks
from hotplate.errors import MachineLostError
from hotplate.events import classify
from hotplate.events.log import EventLog
from hotplate.guest.base import Guest
from hotplate.report.artifacts import Folder, redacted
from hotplate.settings import Settings
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.trial.guest_probe import wait_for_boot
from hotplate.trial.user_checks import CheckedGuest, with_checks
from hotplate.trial.watch import StackEnd, Watch
from hotplate.verdict.deployment_track import WaitSignal
from hotplate.verdict.hook_output import HookOutput
from hotplate.verdict.stages import Mark, Stage
from hotplate.verdict.tracker import StageTracker
from hotplate.verdict.verdict import StackResult, Subject, Verdict, judge

NO_SERVER = "no server"


class Surroundings(TypedDict):
    """The surroundings of a run.

    :param folder: the run's own folder in the artifacts.
    :param say: called with progress messages, in sentences.
    :param on_reached: called with each stage as it is reached, and the server's name.
    :param checks: the user's own, which run in each guest of a run that has passed so far.
    """

    settings: Settings
    folder: Path
    events: EventLog
    say: Callable[[str], None]
    on_reached: Callable[[Mark, str], None]
    checks: NotRequired[UserChecks]


class BaseTrial:
    """One template, one stack, and the servers of it.

    :param more: the :class:`Surroundings`, by keyword.
    :ivar trackers: of the servers, by their ids.
    """

    #: The stages that may be invisible where the servers run.
    unseen: frozenset[Stage] = frozenset()

    #: The network of each guest is checked at the end of its boot.
    checked = False

    #: Each guest is asked after its boot for the effects of its metadata.
    asked = False

    def __init__(self, template: Template, **more: Unpack[Surroundings]) -> None:
        self.template = template
        self.settings = more["settings"]
        self.folder = more["folder"]
        self.events = more["events"]
        self._say = more["say"]
        self._on_reached = more["on_reached"]
        self.checks = more.get("checks", NO_CHECKS)
        self.trackers: dict[str, StageTracker] = {}
        self._watch: Watch

    def _watch_from(
        self,
        owned: ExitStack,
        *,
        at_rest: Callable[[], str],
        check: Callable[[], object] = str,
    ) -> None:
        """Begin to watch the events of the run, until ``owned`` is closed."""
        self._watch = Watch(
            self.events,
            self.settings,
            on_server=self._track,
            on_waiting=self._say,
            at_work=lambda: at_work(self.trackers.values()),
            at_rest=at_rest,
            check=check,
        )
        owned.callback(self._watch.close)
        owned.callback(self._stop_tracking)

    def _track(self, server_id: str) -> None:
        """Follow a server from now on."""
        if server_id not in self.trackers:
            self.trackers[server_id] = StageTracker(
                self.events,
                server_id,
                on_reached=lambda mark: self._on_reached(mark, self._shown_name(server_id)),
                checked=self.checked,
                asked=self.asked,
                unseen=self.unseen,
            )

    def _shown_name(self, server_id: str) -> str:
        """Return the name of a server, where there are several; else ""."""
        tracker = self.trackers.get(server_id)
        return tracker.name if tracker is not None and len(self.trackers) > 1 else ""

    def _stop_tracking(self) -> None:
        for tracker in self.trackers.values():
            tracker.close()

    def _followed(self) -> list[StageTracker]:
        if not self.trackers:
            # No server was started: only the stack's own events can be followed.
            self.trackers[NO_SERVER] = StageTracker(self.events, NO_SERVER, unseen=self.unseen)
        return [*self.trackers.values()]

    def _nothing_is_due(self) -> bool:
        # Nothing is due of a stack without a server, whose own tracker is for its diagnosis.
        return all(each.done() for name, each in self.trackers.items() if name != NO_SERVER)

    def _wait_for_what_is_due(self) -> bool:
        """Return True when all due stages were reached, False when the wait was given up."""
        return not self._watch.until(self._nothing_is_due)

    def _verdict_at_rest(self, judged: Callable[[], Verdict], *, settled: bool) -> Verdict:
        """Return a verdict that was passed while no guest rebooted.

        A guest may reboot long after its last due stage: cloud-init's ``power_state`` does.

        :param judged: passes the verdict; called again after a reboot.
        :param settled: False when the wait for the due stages was given up, so that no other wait
            can help.
        """
        while settled and self._wait_for_what_is_due():
            before = self._boots()
            verdict = judged()
            if self._boots() == before and self._nothing_is_due():
                return verdict
        return judged()

    def _boots(self) -> list[tuple[int, bool]]:
        return [(each.boots.number, each.boots.rebooting) for each in self.trackers.values()]

    def _result(self, stack: Stack, end: StackEnd) -> StackResult:
        failed = stack.failed_outputs(self.trackers)
        return StackResult(
            status=end.status,
            reason=end.reason,
            wanted=self.template.expect_status,
            outputs=stack.outputs,
            # Of a stack that is not complete, many outputs have no value yet.
            output_errors=stack.output_errors() if end.status.endswith("_COMPLETE") else {},
            hook_outputs=self._written(
                {key: HookOutput.of(each) for key, each in failed.items()}, stack
            ),
            unsent=stack.unsent_outputs(self.trackers),
        )

    def _written(self, outputs: Mapping[str, HookOutput], stack: Stack) -> dict[str, HookOutput]:
        """Write outputs of deployments into files, without secrets; return them as written.

        :param outputs: by config id.
        """
        if not outputs:
            return {}
        folder = Folder(self.folder)
        secrets = stack.secrets(self.trackers)
        written = {key: each.without(secrets, redacted) for key, each in outputs.items()}
        for tracker in self.trackers.values():
            for track in tracker.deployments:
                if track.id in written:
                    folder.write_output(
                        written[track.id],
                        server=tracker.name if len(self.trackers) > 1 else "",
                        label=track.label,
                        group=track.group,
                    )
        return written

    def _unmet(
        self, result: StackResult, servers: Mapping[str, tuple[str, Callable[[], Sequence[str]]]]
    ) -> list[str]:
        """Return the unmet expectations of the template's author, in sentences.

        :param servers: by id, the name of each, and a function that returns those of its guest.
        """
        problems: list[str] = []
        if self.template.expect is not None:
            problems += self.template.expect(result.outputs)
        if self.template.expect_guest is None:
            return problems
        for identity, (name, unmet_by_guest) in servers.items():
            tracker = self.trackers.get(identity)
            # A server that misses a stage fails by that, and may accept no connection.
            if tracker is None or tracker.missing() is None:
                where = f'server "{name}": ' if len(servers) > 1 else ""
                problems += [f"{where}{each}" for each in unmet_by_guest()]
        return problems

    def _unmet_by_guest(self, name: str, connect: Callable[[], Guest]) -> list[str]:
        """Return the unmet expectations of a guest in sentences, once its boot has ended.

        :param connect: returns a connection to it.
        :raises HotplateError: and DeadlineExceeded, when the guest cannot be asked.
        """
        from hotplate.guest.testinfra_backend import testinfra_host

        assert self.template.expect_guest is not None
        late = wait_for_boot(connect, seconds=self.settings.patience)
        unmet = self.template.expect_guest(testinfra_host(connect, name=name))
        return [*filter(None, [late]), *unmet]

    def _with_checks(self, verdict: Verdict, guests: Iterable[CheckedGuest]) -> Verdict:
        """Return the verdict with the results of the user's own checks.

        :raises MachineLostError: when the machine was lost, which says nothing about the checks.
        """
        checked = with_checks(
            verdict,
            self.checks,
            guests,
            folder=Folder(self.folder),
            patience=self.settings.patience,
            say=self._say,
        )
        if verdict.passed and self.checks and any(map(classify.is_loss, self.events)):
            raise MachineLostError("the machine was lost while the checks ran")
        return checked

    def _verdict(self, subject: Subject, result: StackResult, problems: list[str]) -> Verdict:
        verdict = judge(
            subject,
            self.events,
            self._followed(),
            replace(result, given_up=self._watch.given_up),
            problems=problems,
            strict=self.settings.strict,
            skip=self.settings.skip,
            now=time.monotonic(),
            artifacts=str(self.folder),
        )
        # An output, Heat's reason, an unmet expectation or a console may repeat a hidden value.
        return verdict.without(self.template.hidden_values(), redacted)


def at_work(trackers: Iterable[StageTracker]) -> str:
    """Return the work in progress in the guests that is waited for, in words."""
    words = []
    for tracker in trackers:
        track = tracker.stuck()
        where = f' in "{tracker.name}"' if tracker.name else ""
        if isinstance(track, WaitSignal) and tracker.boots.runs_user_data:
            words.append(f"the user data{where}")
        elif track is not None and track.missing() is Stage.HOOK_FINISHED:
            words.append(f'the hook of "{track.label}"{where}')
    return " and ".join(words)
