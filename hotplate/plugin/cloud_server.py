"""A server in a cloud as a test sees it; methods that need a machine of this host skip the test."""

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
#: Time for an answer of a guest that may be about to reboot.
REPLY_SECONDS = 15.0


class CloudConsole:
    """The console of a server in a cloud, as far as it has been read.

    :param server: Nova's id.
    """

    def __init__(self, events: EventLog, server: str) -> None:
        self._events = events
        self._server = server

    @property
    def lines(self) -> list[str]:
        """Return the lines so far, without terminal control sequences."""
        return [*self._texts(self._events)]

    def text(self) -> str:
        """Return the whole text so far."""
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

    :param name: returns the name of the next deployment's stack, with a number.
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
        # Inherited methods need only a shell and a name of these two.
        server = SimpleNamespace(  # noqa: S604 - no shell of this host's.
            spec=SimpleNamespace(id=followed.id, name=followed.name),
            directory=self._folder,
            shell=lambda **_: self.ssh,
            ssh=lambda: self.ssh,
        )
        testbed = SimpleNamespace(cloud=project.cloud, events=project.cloud.events)
        super().__init__(cast("Testbed", testbed), cast("Server", server))

    def close(self) -> None:
        """Close the connections, and stop following the stack."""
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
        """Deploy as :meth:`ServerUnderTest.deploy`; the stack gets the tags of the run."""
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
        """Return a testinfra host over ssh, connected again after a reboot."""
        return testinfra_host(lambda: self.ssh, name=str(self))

    @property
    def ssh(self) -> Ssh:
        """Return a connection to the server's ssh, which runs commands as root."""
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
        """Return the serial console as the cloud shows it: ``lines``, ``text``, ``wait_for``."""
        return cast("Console", CloudConsole(self._project.cloud.events, self.id))

    def run(
        self, command: str | Sequence[str], *, timeout: float = COMMAND_SECONDS
    ) -> CommandResult:
        """Run a command over ssh; see :meth:`ServerUnderTest.run`."""
        return self.ssh.run(command, timeout=timeout)

    def reboot(self, *, seconds: float = BOOT_SECONDS) -> None:
        """Reboot the server gracefully by Nova, and wait until it answers again."""
        deadline = GuestDeadline(seconds, f"the reboot of {self}")
        before = self.run(BOOT_ID).check().text
        cloud = self._project.cloud
        with cloud.translated("a reboot"):
            # SOFT asks the guest to reboot; HARD would cut the power.
            cloud.sdk.compute.reboot_server(self.id, "SOFT")

        def rebooted(_: bool) -> bool | None:
            try:
                if self._way is None or not self._way.is_alive:
                    self._way = self._log_in(deadline)
                way = self._way
                # The boot's id, and not the answer alone, tells the new boot from the old one.
                return way.run(BOOT_ID, timeout=REPLY_SECONDS).text not in ("", before) or None
            except (GuestGoneError, DeadlineExceeded):
                if self._way is not None:
                    self._way.close()
                return None

        retry(rebooted, deadline, every=2.0)

    def address(self, network: str = "") -> str:
        """Return the address by which it is reached; skip when a network is named."""
        if network:
            self._skip("address of a network")
        return self._followed.addresses[0]

    # -- not possible in a cloud ------------------------------------------------------------------

    def _skip(self, what: str) -> NoReturn:
        cloud = self._project.cloud.name
        pytest.skip(f"{what} needs a machine of this host; this server is in the cloud {cloud}")

    def crash(self) -> None:
        """Skip: a cloud cannot cut the power."""
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
        """Skip: there is only one server."""
        del other, port, network, seconds
        self._skip("can_reach")

    def block(self, network: str = "") -> None:
        """Skip: a cloud has no cable to pull."""
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

    # -- results -----------------------------------------------------------------------------------

    def _tracker(self) -> StageTracker:
        tracker = StageTracker(self._project.cloud.events, self.id, unseen=UNSEEN)
        tracker.close()
        return tracker

    def diagnosis(self) -> Diagnosis | None:
        """Return the visible reason that the last deployment did not complete; None when it did."""
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
        """Write the evidence as :meth:`ServerUnderTest.leave_evidence`, without a disk."""
        del whole
        # Events without a server are the cloud's own.
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
        """Report that it cannot stay up: it is deleted with its test."""
        say(f'the server "{self}" is in a cloud, and goes with its test')
