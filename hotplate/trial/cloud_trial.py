"""One run in a cloud: an image and a template go in, a verdict comes out.

The counterpart of :class:`hotplate.trial.trial.Trial` for servers that are not machines of this
host.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Unpack

from hotplate.elsewhere import hosts, leftovers, networks
from hotplate.elsewhere.following import Followed, Following, folder_name
from hotplate.elsewhere.os_cloud import OsCloud
from hotplate.elsewhere.project import Project
from hotplate.elsewhere.refusals import refusal
from hotplate.elsewhere.ways import WayOptions, Ways
from hotplate.errors import HostError, HotplateError, ImageError, TemplateError, UsageError
from hotplate.events.kinds import GuestLogin
from hotplate.guest.ssh import Ssh
from hotplate.history import FILE, History
from hotplate.image.inspect import Image
from hotplate.report.artifacts import Folder
from hotplate.stacks.fitting import Fit, fitted, needs_network
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.timing.deadline import Deadline, DeadlineExceeded
from hotplate.trial.base import BaseTrial, Surroundings
from hotplate.trial.guest_probe import GUEST_LOGS, check_standard
from hotplate.trial.user_checks import CheckedGuest
from hotplate.trial.watch import StackEnd
from hotplate.verdict.stages import Stage
from hotplate.verdict.tracker import decisive
from hotplate.verdict.verdict import Subject, Verdict

#: Stages between a guest and its cloud, which only the console, or ssh, may show.
UNSEEN = frozenset({Stage.NETWORK_UP, Stage.METADATA_SERVED, Stage.AGENT_POLLED})

#: The folder of the cache with the records of this host's runs.
RUNS = "os-cloud"

LOG_SECONDS = 60.0
SSH_KEY = "ssh-key"


@dataclass(frozen=True)
class CloudChoice:
    """The options of a run in a cloud.

    :param name: of the cloud, in ``clouds.yaml``.
    :param image: the name or id of an image in the cloud; "" to upload the one under test.
    :param network: the name or id of the network of servers whose template names none; "" for the
        project's only one.
    :param ways: the connections to its servers.
    :param keep: leave the resources that the run has made.
    :param uninterrupted: a context manager in which signals wait.
    """

    name: str
    image: str = ""
    network: str = ""
    ways: WayOptions = field(default_factory=WayOptions)
    keep: bool = False
    uninterrupted: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext


class CloudTrial(BaseTrial):
    """One template in one cloud; see :class:`hotplate.trial.trial.Trial`.

    :param image: the image under test; None where the cloud has it.
    :param more: see :class:`~hotplate.trial.base.BaseTrial`.
    """

    unseen = UNSEEN

    def __init__(
        self,
        image: Image | None,
        template: Template,
        *,
        options: CloudChoice,
        **more: Unpack[Surroundings],
    ) -> None:
        super().__init__(template, **more)
        self.image = image
        self.options = options
        self._servers: dict[str, Followed] = {}

    def judge(self) -> Verdict:
        """Make the stack, wait for it and for the due stages, return the verdict, and clean up.

        :raises HotplateError: when no stack can be made; see :mod:`hotplate.elsewhere.refusals`.
        """
        self._cloud = OsCloud.open(self.options.name, self.events)
        self._project = Project(
            self._cloud,
            runs=self.settings.cache / RUNS,
            uninterrupted=self.options.uninterrupted,
            keep=self.options.keep,
            say=self._say,
        )
        with (
            self._project,
            Ways(self.options.ways, key=self._project.key) as self._ways,
            ExitStack() as owned,
        ):
            if self.options.keep:
                # However the run ends: the guests and their key are of use after an interruption.
                owned.callback(self._tell_what_is_kept)
            self._watch_from(owned, at_rest=lambda: self._following.why())
            stack = self._make_stack()
            with self._follow(stack):
                verdict = self._judge(stack)
        if not self._project.left:
            return verdict
        facts = {**verdict.subject.facts, "left in the cloud": "; ".join(self._project.left)}
        return replace(verdict, subject=replace(verdict.subject, facts=facts))

    # -- inside ----------------------------------------------------------------------------------

    def _make_stack(self) -> Stack:
        """Make a key pair, an image unless the cloud has it, and begin to make the stack."""
        # Look both up before anything is made: a wrong name is no reason to upload.
        named = self.options.image
        image = str(self._cloud.find("image", named).id) if named else ""
        fit = connection(self._cloud, self.template, network=self.options.network)
        key_pair = self._project.make_key_pair()
        if self.image is not None and not image:
            image = self._upload(self.image)
        self._image = image
        fit = replace(fit, image=image, key_pair=key_pair)
        stack = make_stack(self._project, self.template, fit)
        self._say(f"stack: {stack.name} in the cloud {self._cloud.name}")
        return stack

    def _upload(self, image: Image) -> str:
        """Upload the image, and say how long that took the last times; return its id."""
        history = History(self.settings.cache / FILE)
        # By its name: most images that are uploaded again have changed.
        key = f"upload-{self._cloud.name}-{image.path.name}"
        usual = history.expected(key).get("uploaded")
        estimate = f", which usually takes {usual:.0f} s" if usual else ""
        self._say(f"uploading {image.path} to the cloud {self._cloud.name}{estimate}")
        began = time.monotonic()
        made = self._project.make_image(image)
        history.record(key, {"uploaded": time.monotonic() - began})
        return made

    def _follow(self, stack: Stack) -> Following:
        self._following = Following(
            self._cloud,
            stack=stack.name,
            stack_id=stack.id,
            directory=self.folder / "servers",
        )
        self._servers = self._following.servers
        return self._following

    def _judge(self, stack: Stack) -> Verdict:
        """Wait for the stack and for the due stages, and return the verdict."""
        end = self._watch.stack(stack.name, "CREATE")
        as_wanted = end.status == self.template.expect_status
        settled = as_wanted and self._wait_for_what_is_due()
        self._following.check()
        self._check_cloud(end)
        with self._cloud.translated("the stack"):
            result = self._result(stack, end)
        problems = self._unmet(result, self._guests()) if as_wanted else []
        if not as_wanted:
            self._save_logs_of_all()
        verdict = self._verdict_at_rest(
            lambda: self._verdict(self._subject(), result, problems), settled=settled
        )
        return self._with_checks(verdict, self._checked_guests())

    def _checked_guests(self) -> Iterator[CheckedGuest]:
        servers = self._servers
        for server in servers.values():
            with contextlib.closing(_SshAccess(partial(self._log_in, server))) as access:
                name = server.name if len(servers) > 1 else ""
                # A cloud's servers may reach the Internet: a check that needs it finds out.
                yield CheckedGuest(access, name=name, internet=True)

    def _check_cloud(self, end: StackEnd) -> None:
        """Check the cloud first: a server that it could not make says nothing about the image.

        :raises HotplateError: an error that attributes the fault.
        """
        if end.status == self.template.expect_status or any(
            each.failed for tracker in self.trackers.values() for each in tracker.deployments
        ):
            return
        if refused := refusal(self._cloud.name, end.reason):
            if hosts.NO_HOST in end.reason:
                self._check_properties()
            raise refused

    def _check_properties(self) -> None:
        """Check whether no host was found because of the properties of the uploaded image.

        :raises ImageError: when that is so.
        """
        failed = next((each for each in self._servers.values() if each.status == "ERROR"), None)
        if failed is None or self.options.image:
            return
        self._say("no host was found; trying whether that is for the image's properties")
        misfits = []
        with contextlib.suppress(HotplateError, DeadlineExceeded):
            misfits = hosts.misfits(self._project, image=self._image, flavor=failed.flavor)
        if misfits:
            raise ImageError(
                f'no host of the cloud "{self._cloud.name}" takes the image, for its properties '
                f"{', '.join(misfits)}: without them, a server of the same flavor finds one",
                hint="build the image for the architecture and the firmware of the cloud's hosts",
            )

    def _guests(self) -> dict[str, tuple[str, Callable[[], list[str]]]]:
        servers = self._servers
        return {key: (each.name, partial(self._look_into, each)) for key, each in servers.items()}

    def _look_into(self, server: Followed) -> list[str]:
        """Return the unmet expectations of a server in sentences; a refused login is one of them.

        :raises HostError: when the server cannot be reached at all.
        """
        try:
            with contextlib.closing(self._log_in(server, self.settings.patience)) as way:
                problems = self._unmet_by_guest(server.name, lambda: way)
                self._save_logs(server, way)
                return problems
        except HostError:
            # A jump host that refuses the connection is no fault of the image.
            raise
        except (HotplateError, DeadlineExceeded) as error:
            words = error.message if isinstance(error, HotplateError) else str(error)
            return [f"the guest could not be asked by ssh: {words}"]

    def _log_in(self, server: Followed, seconds: float) -> Ssh:
        """Log in to a server.

        :raises HotplateError: and DeadlineExceeded, when that is not possible.
        """
        if not server.addresses:
            raise UsageError(f'the server "{server.name}" has no address')
        address = server.addresses[0]
        deadline = Deadline(seconds, f'ssh of the server "{server.name}" at {address}')
        way, by_key_pair = self._ways.log_in(address, deadline)
        self.events.add(GuestLogin(way.user, by_key_pair), server=server.id)
        return way

    def _save_logs_of_all(self) -> None:
        """Save the logs of the guests that accept a login."""
        for server in self._servers.values():
            # Without either, only a floating address is surely one of the guest's.
            by_options = self.options.ways.jump or self.options.ways.config
            if not by_options and not (server.has_floating and self._answers(server)):
                continue
            with (
                contextlib.suppress(HotplateError, DeadlineExceeded),
                contextlib.closing(self._log_in(server, LOG_SECONDS)) as way,
            ):
                self._save_logs(server, way)

    def _answers(self, server: Followed) -> bool:
        """Return True when a server's ssh is reached at once."""
        with contextlib.suppress(OSError), self._ways.connect(server.addresses[0]):
            return True
        return False

    def _save_logs(self, server: Followed, way: Ssh) -> None:
        folder = Folder(self.folder)
        with contextlib.suppress(HotplateError, DeadlineExceeded):
            for name, command in GUEST_LOGS.items():
                answer = way.run(command)
                folder.write(f"guest/{folder_name(server.name)}/{name}", answer.stdout)
            check_standard(self.events, server.id, way)

    def _subject(self) -> Subject:
        return Subject(
            image=self.options.image or str(self.image.path if self.image else ""),
            template=self.template.source,
            server=decisive(self._followed()).name,
            facts={
                "cloud": self.options.name,
                "stack": self._project.run.name,
                "image": self.options.image or "uploaded for this run",
            },
        )

    def _tell_what_is_kept(self) -> None:
        """Report the kept resources, the logins, and the command to remove them."""
        run = self._project.run
        with self.options.uninterrupted():
            kinds = "whatever was made"
            with contextlib.suppress(HotplateError):
                kinds = ", ".join(each.kind for each in leftovers.of(self._cloud, run))
            if not kinds:
                return
            key = Folder(self.folder).write(SSH_KEY, self._project.private_key)
            self._say(f"kept in the cloud {self.options.name}: {run.name} ({kinds})")
            for server in self._servers.values():
                for address in server.addresses[:1]:
                    self._say(f"    {server.name}: ssh -i {key} root@{address}")
            self._say(f"    to take it away: hotplate test --os-cloud {self.options.name} --clean")


class _SshAccess:
    """The connection to a server of the cloud: ssh, by sudo where the user is not root.

    :param log_in: makes a connection within some seconds.
    """

    #: Only the cloud knows, and it is not asked: a server that is off does not answer.
    running = True

    def __init__(self, log_in: Callable[[float], Ssh]) -> None:
        self._log_in = log_in
        self._ssh: Ssh | None = None

    def connect(self, seconds: float) -> Ssh:
        """See :meth:`~hotplate.checks.runner.GuestAccess.connect`."""
        if self._ssh is None or not self._ssh.is_alive:
            self._ssh = self._log_in(seconds)
        return self._ssh

    def drop(self) -> None:
        """See :meth:`~hotplate.checks.runner.GuestAccess.drop`."""
        if self._ssh is not None:
            self._ssh.close()
        self._ssh = None

    close = drop


def connection(cloud: OsCloud, template: Template, *, network: str) -> Fit:
    """Return the network for the servers of a template that name none.

    :param network: its name or id; "" for the project's only one, if a server needs it.
    :raises UsageError: when there is none, or several.
    """
    if not network and not needs_network(template):
        return Fit()
    found = cloud.find("network", network) if network else networks.only(cloud)
    return Fit(network=str(found.id), subnet=networks.subnet_of(cloud, found))


def make_stack(project: Project, template: Template, fit: Fit, *, name: str = "") -> Stack:
    """Begin to make a stack of a run, from a template fitted to the cloud.

    :param fit: the resources for its servers.
    :param name: of the stack; by default that of the run.
    :raises TemplateError: when Heat refuses it.
    :raises HostError: when the cloud has no room for it.
    """
    cloud, run = project.cloud, project.run
    suited = fitted(template, fit)
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
