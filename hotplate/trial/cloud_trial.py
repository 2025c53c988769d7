"""One run in a cloud: an image and a template go in, a verdict comes out.

The counterpart of :class:`hotplate.trial.trial.Trial` for servers that are not machines of this
host.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from hotplate.elsewhere import images
from hotplate.elsewhere.following import Followed, Following, folder_name
from hotplate.elsewhere.os_cloud import OsCloud
from hotplate.elsewhere.project import Project
from hotplate.elsewhere.refusals import refusal
from hotplate.elsewhere.ways import WayOptions, Ways
from hotplate.errors import HostError, HotplateError, TemplateError, UsageError
from hotplate.events.kinds import GuestLogin
from hotplate.events.log import EventLog
from hotplate.guest.ssh import Ssh
from hotplate.image.inspect import Image
from hotplate.report.artifacts import Folder
from hotplate.settings import Settings
from hotplate.stacks.fitting import fitted
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.timing.deadline import Deadline, DeadlineExceeded
from hotplate.trial.guest_probe import BOOT_END, GUEST_LOGS
from hotplate.trial.trial import NO_SERVER, at_work, hook_outputs
from hotplate.trial.watch import StackEnd, Watch
from hotplate.verdict.stages import Mark, Stage
from hotplate.verdict.tracker import StageTracker, decisive
from hotplate.verdict.verdict import StackResult, Subject, Verdict, judge

UNSEEN = frozenset({Stage.NETWORK_UP, Stage.METADATA_SERVED, Stage.AGENT_POLLED})
"""Stages between a guest and its cloud, which only the console, or ssh, may show."""

RUNS = "os-cloud"
"""The folder of the cache with the records of this host's runs."""

LOG_SECONDS = 60.0
SSH_KEY = "ssh-key"


@dataclass(frozen=True)
class CloudChoice:
    """The options of a run in a cloud.

    :param name: of the cloud, in ``clouds.yaml``.
    :param image: the name or id of an image in the cloud; "" to upload the one under test.
    :param ways: the connections to its servers.
    :param keep: leave the resources that the run has made.
    :param uninterrupted: a context manager in which signals wait.
    """

    name: str
    image: str = ""
    ways: WayOptions = field(default_factory=WayOptions)
    keep: bool = False
    uninterrupted: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext


class CloudTrial:
    """One template in one cloud; see :class:`hotplate.trial.trial.Trial`.

    :param image: the image under test; None where the cloud has it.
    """

    def __init__(
        self,
        image: Image | None,
        template: Template,
        *,
        options: CloudChoice,
        settings: Settings,
        folder: Path,
        events: EventLog,
        say: Callable[[str], None],
        on_reached: Callable[[Mark, str], None],
    ) -> None:
        self.image = image
        self.template = template
        self.options = options
        self.settings = settings
        self.folder = folder
        self.events = events
        self._say = say
        self._on_reached = on_reached
        self.trackers: dict[str, StageTracker] = {}

    def judge(self) -> Verdict:
        """Make the stack, wait for it and for the due stages, return the verdict, and clean up.

        :raises HotplateError: when no stack can be made; see :mod:`hotplate.elsewhere.refusals`.
        """
        cloud = OsCloud.open(self.options.name, self.events)
        self._project = Project(
            cloud,
            runs=self.settings.cache / RUNS,
            uninterrupted=self.options.uninterrupted,
            keep=self.options.keep,
            say=self._say,
        )
        with self._project, Ways(self.options.ways, key=self._project.key) as ways:
            verdict = self._try(cloud, ways)
        if not self._project.left:
            return verdict
        facts = {**verdict.subject.facts, "left in the cloud": "; ".join(self._project.left)}
        return replace(verdict, subject=replace(verdict.subject, facts=facts))

    # -- inside ----------------------------------------------------------------------------------

    def _try(self, cloud: OsCloud, ways: Ways) -> Verdict:
        project = self._project
        # Look the image up before anything is made: a wrong name is no reason to upload.
        image = images.find(cloud, self.options.image) if self.options.image else ""
        key_pair = project.make_key_pair()
        if self.image is not None and not image:
            self._say(f"uploading {self.image.path} to the cloud {cloud.name}")
            image = project.make_image(self.image)
        watch = Watch(
            self.events,
            self.settings,
            on_server=self._track,
            on_waiting=self._say,
            at_work=lambda: at_work(self.trackers.values()),
            at_rest=lambda: following.why(),
        )
        self._watch = watch
        with contextlib.closing(watch):
            stack = make_stack(project, self.template, image=image, key_pair=key_pair)
            self._say(f"stack: {stack.name} in the cloud {cloud.name}")
            following = Following(
                cloud,
                stack=stack.name,
                stack_id=stack.id,
                directory=self.folder / "servers",
            )
            with following:
                verdict = self._follow(cloud, stack, watch, following, ways)
        if self.options.keep:
            self._tell_what_is_kept(following)
        return verdict

    def _follow(
        self, cloud: OsCloud, stack: Stack, watch: Watch, following: Following, ways: Ways
    ) -> Verdict:
        try:
            end = watch.stack(stack.name, "CREATE")
            as_wanted = end.status == self.template.expect_status
            if as_wanted:
                watch.until(self._nothing_is_due)
            following.check()
            self._check_cloud(cloud, end)
            with cloud.translated("the stack"):
                result = self._result(stack, end)
            problems = self._look_into_guests(result, following, ways) if as_wanted else []
            if not as_wanted and (self.options.ways.jump or self.options.ways.config):
                self._save_logs_of_all(following, ways)
            return self._judge(result, problems)
        finally:
            for tracker in self.trackers.values():
                tracker.close()

    def _check_cloud(self, cloud: OsCloud, end: StackEnd) -> None:
        """Check the cloud first: a server that it could not make says nothing about the image.

        :raises HotplateError: an error that attributes the fault.
        """
        if end.status == self.template.expect_status or any(
            each.failed for tracker in self.trackers.values() for each in tracker.deployments
        ):
            return
        if refused := refusal(cloud.name, end.reason):
            raise refused

    def _nothing_is_due(self) -> bool:
        return all(each.done() for each in self.trackers.values())

    def _track(self, server_id: str) -> None:
        if server_id not in self.trackers:
            self.trackers[server_id] = StageTracker(
                self.events,
                server_id,
                on_reached=lambda mark: self._tell(server_id, mark),
                unseen=UNSEEN,
            )

    def _tell(self, server_id: str, mark: Mark) -> None:
        tracker = self.trackers.get(server_id)
        name = tracker.name if tracker is not None and len(self.trackers) > 1 else ""
        self._on_reached(mark, name)

    def _followed(self) -> list[StageTracker]:
        if not self.trackers:
            self.trackers[NO_SERVER] = StageTracker(self.events, NO_SERVER, unseen=UNSEEN)
        return [*self.trackers.values()]

    def _result(self, stack: Stack, end: StackEnd) -> StackResult:
        return StackResult(
            status=end.status,
            reason=end.reason,
            wanted=self.template.expect_status,
            outputs=stack.outputs,
            hook_outputs=hook_outputs(stack, self.trackers, Folder(self.folder)),
            unsent=stack.unsent_outputs(self.trackers),
            given_up=self._watch.given_up,
        )

    def _look_into_guests(self, result: StackResult, following: Following, ways: Ways) -> list[str]:
        """Return the unmet expectations of the template's author, in sentences."""
        problems: list[str] = []
        if self.template.expect is not None:
            problems += self.template.expect(result.outputs)
        if self.template.expect_guest is None:
            return problems
        servers = [*following.servers.values()]
        for server in servers:
            # A server that misses a stage fails by that, and may refuse the login.
            tracker = self.trackers.get(server.id)
            if tracker is not None and tracker.missing() is not None:
                continue
            where = f'server "{server.name}": ' if len(servers) > 1 else ""
            problems += [f"{where}{each}" for each in self._look_into(server, ways)]
        return problems

    def _look_into(self, server: Followed, ways: Ways) -> list[str]:
        """Return the unmet expectations of a server in sentences; a refused login is one of them.

        :raises HostError: when the server cannot be reached at all.
        """
        from hotplate.guest.testinfra_backend import testinfra_host

        assert self.template.expect_guest is not None
        try:
            way = self._log_in(server, ways, seconds=self.settings.patience)
        except HostError:
            # A jump host that refuses the connection is no fault of the image.
            raise
        except (HotplateError, DeadlineExceeded) as error:
            return [f"the guest could not be asked by ssh: {_words(error)}"]
        with contextlib.closing(way):
            try:
                late = self._wait_for_boot(way)
                host = testinfra_host(lambda: way, name=server.name)
                problems = [*filter(None, [late]), *self.template.expect_guest(host)]
            except (HotplateError, DeadlineExceeded) as error:
                return [f"the guest could not be asked by ssh: {_words(error)}"]
            self._save_logs(server, way)
            return problems

    def _wait_for_boot(self, way: Ssh) -> str:
        try:
            way.run(BOOT_END, timeout=self.settings.patience)
        except DeadlineExceeded:
            return f"its boot has not ended after another {self.settings.patience:.0f} s"
        return ""

    def _log_in(self, server: Followed, ways: Ways, *, seconds: float) -> Ssh:
        """Log in to a server.

        :raises HotplateError: and DeadlineExceeded, when that is not possible.
        """
        if not server.addresses:
            raise UsageError(f'the server "{server.name}" has no address')
        address = server.addresses[0]
        deadline = Deadline(seconds, f'ssh of the server "{server.name}" at {address}')
        way, by_key_pair = ways.log_in(address, deadline)
        self.events.add(GuestLogin(way.user, by_key_pair), server=server.id)
        return way

    def _save_logs_of_all(self, following: Following, ways: Ways) -> None:
        """Save the logs of the guests that accept a login."""
        for server in following.servers.values():
            with (
                contextlib.suppress(HotplateError, DeadlineExceeded),
                contextlib.closing(self._log_in(server, ways, seconds=LOG_SECONDS)) as way,
            ):
                self._save_logs(server, way)

    def _save_logs(self, server: Followed, way: Ssh) -> None:
        folder = Folder(self.folder)
        with contextlib.suppress(HotplateError, DeadlineExceeded):
            for name, command in GUEST_LOGS.items():
                answer = way.run(command)
                folder.write(f"guest/{folder_name(server.name)}/{name}", answer.stdout)

    def _judge(self, result: StackResult, problems: list[str]) -> Verdict:
        followed = self._followed()
        facts: Mapping[str, str] = {
            "cloud": self.options.name,
            "stack": self._project.run.name,
            "image": self.options.image or "uploaded for this run",
        }
        return judge(
            Subject(
                image=self.options.image or str(self.image.path if self.image else ""),
                template=self.template.source,
                server=decisive(followed).name,
                facts=facts,
            ),
            self.events,
            followed,
            result,
            problems=problems,
            strict=self.settings.strict,
            now=time.monotonic(),
            artifacts=str(self.folder),
        )

    def _tell_what_is_kept(self, following: Following) -> None:
        """Report the kept resources, the logins, and the command to remove them."""
        key = Folder(self.folder).write(SSH_KEY, self._project.private_key)
        self._say(f"kept in the cloud {self.options.name}: {self._project.run.name}")
        for server in following.servers.values():
            for address in server.addresses[:1]:
                self._say(f"    {server.name}: ssh -i {key} root@{address}")
        self._say(f"    to take it away: hotplate test --os-cloud {self.options.name} --clean")


def make_stack(
    project: Project, template: Template, *, image: str, key_pair: str, name: str = ""
) -> Stack:
    """Begin to make a stack of a run, from a template fitted to the cloud.

    :param image: the id of the image that its servers boot.
    :param key_pair: for the servers that have none.
    :param name: of the stack; by default that of the run.
    :raises TemplateError: when Heat refuses it.
    :raises HostError: when the cloud has no room for it.
    """
    cloud, run = project.cloud, project.run
    suited = fitted(template, image=image, key_pair=key_pair)
    with cloud.translated("a stack"):
        try:
            return Stack.create(cloud, suited, name=name or run.name, tags=run.tags)
        except HotplateError as error:
            if refused := refusal(cloud.name, error.message):
                raise refused from error
            cause = error.__cause__
            if isinstance(error, TemplateError) or not isinstance(cause, Exception):
                raise
            raise cloud.error_of(cause, "a stack") from error


def _words(error: HotplateError | DeadlineExceeded) -> str:
    return error.message if isinstance(error, HotplateError) else str(error)
