"""A server in a cloud as a test sees it: what a machine of this host has and it has not, skips."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from hotplate.elsewhere.following import Followed, Following, folder_name
from hotplate.elsewhere.project import Project
from hotplate.elsewhere.ways import Ways
from hotplate.errors import UsageError
from hotplate.events import classify
from hotplate.events.log import EventLog
from hotplate.guest.base import COMMAND_SECONDS, CommandResult, GuestGoneError
from hotplate.guest.ssh import Ssh
from hotplate.guest.testinfra_backend import testinfra_host
from hotplate.plugin.server import BOOT_SECONDS, ServerUnderTest
from hotplate.report.artifacts import Folder
from hotplate.report.html import report
from hotplate.stacks.deployment import Config, Deployment, DeploymentSpec
from hotplate.testbed.server import BOOT_ID
from hotplate.timing.deadline import Deadline, DeadlineExceeded, GuestDeadline, retry
from hotplate.trial.cloud_trial import UNSEEN
from hotplate.verdict.diagnosis import Diagnosis, diagnose
from hotplate.verdict.hook_output import HookOutput
from hotplate.verdict.noticed import notice
from hotplate.verdict.tracker import StageTracker
from hotplate.verdict.verdict import Subject, of_test

if TYPE_CHECKING:
    from testinfra.host import Host

    from hotplate.machine.console import Console
    from hotplate.testbed.server import Server
    from hotplate.testbed.testbed import Testbed

SSH_SECONDS = 300.0
REPLY_SECONDS = 15.0
"""How long a guest that may be about to reboot has to answer."""


class CloudConsole:
    """The console of a server in a cloud, as far as it was read.

    :param server: Nova's id.
    """

    def __init__(self, events: EventLog, server: str) -> None:
        self._events = events
        self._server = server

    @property
    def lines(self) -> list[str]:
        """The lines so far, without terminal control sequences."""
        return [*self._texts(self._events)]

    def text(self) -> str:
        """Return everything so far."""
        return "\n".join(self.lines)

    def wait_for(self, pattern: str, deadline: Deadline) -> re.Match[str]:
        """Wait until a line matches, and return the match.

        :param pattern: a regular expression.
        :raises DeadlineExceeded: when none does in time.
        """
        wanted = re.compile(pattern)
        matched = self._events.wait(
            lambda event: any(map(wanted.search, self._texts([event]))), seconds=deadline.left
        )
        for text in self._texts([matched] if matched is not None else []):
            if match := wanted.search(text):
                return match
        last = (self.lines or [""])[-1]
        raise DeadlineExceeded(f'gave up waiting for {deadline.what}; the last line is "{last}"')

    def _texts(self, events: Any) -> Iterator[str]:
        for event in events:
            text = classify.console_text(event) if event.server == self._server else None
            if text is not None:
                yield text


class CloudServerUnderTest(ServerUnderTest):
    """One running server in a cloud; it has a stack of its own.

    :param name: what the stacks of its deployments are called, with a number each.
    """

    def __init__(
        self,
        project: Project,
        followed: Followed,
        ways: Ways,
        *,
        following: Callable[[str, str], Following],
        name: Callable[[], str],
        directory: Path,
    ) -> None:
        self._project = project
        self._followed = followed
        self._ways = ways
        self._follow = following
        self._next_name = name
        self._way: Ssh | None = None
        self._followings: list[Following] = []
        self._folder = directory / folder_name(followed.name)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # What is inherited asks these two for no more than a shell and a name.
        server = SimpleNamespace(  # noqa: S604 - no shell of this host's.
            spec=SimpleNamespace(id=followed.id, name=followed.name),
            directory=self._folder,
            shell=lambda **_: self.ssh,
            ssh=lambda: self.ssh,
        )
        testbed = SimpleNamespace(cloud=project.cloud, events=project.cloud.events)
        super().__init__(cast("Testbed", testbed), cast("Server", server))

    def close(self) -> None:
        """Give up the ways in, and follow nothing any more."""
        if self._way is not None:
            self._way.close()
        for each in self._followings:
            each.__exit__(None, None, None)

    def deploy(
        self,
        *,
        group: str,
        config: Config,
        inputs: Mapping[str, object] | None = None,
        outputs: Sequence[str | Mapping[str, object]] = (),
        options: Mapping[str, object] | None = None,
        transport: str = "CFN_SIGNAL",
        actions: Sequence[str] = ("CREATE", "UPDATE"),
        name: str = "",
    ) -> Deployment:
        """See :meth:`ServerUnderTest.deploy`; the stack of a deployment is tagged as the run's."""
        spec = DeploymentSpec(
            group=group,
            config=config,
            inputs=inputs or {},
            outputs=outputs,
            options=options or {},
            transport=transport,
            actions=actions,
            name=name,
        )
        cloud = self._project.cloud
        stack, tags = self._next_name(), self._project.run.tags
        with cloud.translated("a deployment"):
            deployment = Deployment(cloud, self.id, spec, stack=stack, tags=tags)
        following = self._follow(stack, deployment.stack.id)
        following.__enter__()
        self._followings.append(following)
        self.deployments.append(deployment)
        return deployment

    @cached_property
    def host(self) -> Host:
        """A testinfra host over ssh, connected again after a reboot."""
        return testinfra_host(lambda: self.ssh, name=str(self))

    @property
    def ssh(self) -> Ssh:
        """A connection to the server's ssh, by which commands run as root."""
        if self._way is None or not self._way.is_alive:
            what = f'ssh of the server "{self}"'
            self._way = self._log_in(GuestDeadline(SSH_SECONDS, what))
        return self._way

    def _log_in(self, deadline: Deadline) -> Ssh:
        if not self._followed.addresses:
            raise UsageError(f'the server "{self}" has no address')
        return self._ways.log_in(self._followed.addresses[0], deadline)[0]

    @property
    def console(self) -> Console:
        """The serial console, as far as the cloud shows it: ``lines``, ``text``, ``wait_for``."""
        return cast("Console", CloudConsole(self._project.cloud.events, self.id))

    def run(
        self, command: str | Sequence[str], *, timeout: float = COMMAND_SECONDS
    ) -> CommandResult:
        """See :meth:`ServerUnderTest.run`; over ssh."""
        return self.ssh.run(command, timeout=timeout)

    def reboot(self, *, seconds: float = BOOT_SECONDS) -> None:
        """Let Nova reboot the server gracefully, and wait until it answers again."""
        deadline = GuestDeadline(seconds, f"the reboot of {self}")
        before = self.run(BOOT_ID).check().text
        cloud = self._project.cloud
        with cloud.translated("a reboot"):
            cloud.sdk.compute.reboot_server(self.id, "SOFT")

        def rebooted(_: bool) -> bool | None:
            try:
                if self._way is None or not self._way.is_alive:
                    self._way = self._log_in(deadline)
                way = self._way
                return way.run(BOOT_ID, timeout=REPLY_SECONDS).text not in ("", before) or None
            except (GuestGoneError, DeadlineExceeded):
                if self._way is not None:
                    self._way.close()
                return None

        retry(rebooted, deadline, every=2.0)

    def address(self, network: str = "") -> str:
        """Return the address by which it is reached; of a certain network, skip."""
        if network:
            self._skip("address of a network")
        return self._followed.addresses[0]

    # -- what a cloud cannot do --------------------------------------------------------------------

    def _skip(self, what: str) -> NoReturn:
        cloud = self._project.cloud.name
        pytest.skip(f"{what} needs a machine of this host; this server is in the cloud {cloud}")

    def crash(self) -> None:
        """Skip: a cloud cuts no power."""
        self._skip("crash")

    def start(self, *, wait: bool = True, seconds: float = BOOT_SECONDS) -> None:
        """Skip; see :meth:`crash`."""
        del wait, seconds
        self._skip("start")

    def can_reach(
        self,
        other: ServerUnderTest,
        port: int,
        *,
        network: str = "",
        seconds: float = 0.0,
    ) -> bool:
        """Skip: there is one server."""
        del other, port, network, seconds
        self._skip("can_reach")

    def block(self, network: str = "") -> None:
        """Skip: nobody pulls a cable of a cloud."""
        del network
        self._skip("block")

    def unblock(self, network: str = "") -> None:
        """Skip; see :meth:`block`."""
        del network
        self._skip("unblock")

    def shape(self, network: str = "", *, delay: float = 0.0, loss: float = 0.0) -> None:
        """Skip; see :meth:`block`."""
        del network, delay, loss
        self._skip("shape")

    def part(self, *others: ServerUnderTest, network: str = "") -> None:
        """Skip; see :meth:`block`."""
        del others, network
        self._skip("part")

    def join(self, *others: ServerUnderTest, network: str = "") -> None:
        """Skip; see :meth:`block`."""
        del others, network
        self._skip("join")

    # -- what became of it -------------------------------------------------------------------------

    def _tracker(self) -> StageTracker:
        tracker = StageTracker(self._project.cloud.events, self.id, unseen=UNSEEN)
        tracker.close()
        return tracker

    def diagnosis(self) -> Diagnosis | None:
        """Why the last deployment did not complete, as far as it can be seen; None when it did."""
        last = self.deployments[-1] if self.deployments else None
        hook_outputs = {}
        if last is not None and last.status == "FAILED":
            hook_outputs = {last.config_id: HookOutput.of(last.outputs)}
        return diagnose(
            self._project.cloud.events,
            self._tracker(),
            stack_status=last.stack.status if last else "",
            stack_reason=last.reason if last else "",
            hook_outputs=hook_outputs,
        )

    def leave_evidence(
        self, test: str, *, problem: str = "", diagnosis: Diagnosis | None = None, whole: bool
    ) -> None:
        """See :meth:`ServerUnderTest.leave_evidence`; there is no disk to leave."""
        del whole
        seen = [each for each in self._project.cloud.events if each.server in ("", self.id)]
        cloud = self._project.cloud.name
        verdict = of_test(
            Subject(image="", template=test, server=str(self), facts={"cloud": cloud}),
            self._tracker(),
            problem=problem,
            lost=False,
            status=self.deployments[-1].stack.status if self.deployments else "",
            diagnosis=diagnosis,
            noticed=notice(seen, {self.id: ""}),
            now=time.monotonic(),
            artifacts=str(self._folder),
        )
        Folder(self._folder).finish(verdict, seen, report=report(verdict, seen))

    def pause(self, *, say: Callable[[str], None]) -> None:
        """Say that it cannot be left up: it goes with its test."""
        say(f'the server "{self}" is in a cloud, and goes with its test')
