"""Supplies tests with servers in a cloud: each has a stack of its own, deleted after its test."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hotplate.elsewhere.following import Followed, Following, folder_name
from hotplate.elsewhere.leftovers import of, remove
from hotplate.elsewhere.os_cloud import OsCloud
from hotplate.elsewhere.project import Project
from hotplate.elsewhere.refusals import refusal
from hotplate.elsewhere.server import CloudServer
from hotplate.elsewhere.ways import WayOptions, Ways
from hotplate.errors import HotplateError, SubjectError
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.plugin.server import Platform, ServerUnderTest
from hotplate.report.artifacts import Folder
from hotplate.report.html import report
from hotplate.settings import Settings
from hotplate.stacks.deployment import Deployment, DeploymentSpec
from hotplate.stacks.fitting import Fit
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.timing.deadline import GuestDeadline, retry
from hotplate.trial.cloud_trial import RUNS, UNSEEN, connection, make_stack
from hotplate.verdict.diagnosis import Diagnosis, diagnose
from hotplate.verdict.noticed import notice
from hotplate.verdict.tracker import StageTracker
from hotplate.verdict.verdict import EndedTest, Subject, of_test

CREATE_SECONDS = 600.0


@dataclass(frozen=True)
class Place:
    """The location of tests' servers in a cloud.

    :param cloud: of ``clouds.yaml``.
    :param flavor: of each server.
    :param network: of each server; "" for the project's only one.
    :param ways: the options for connections to them.
    """

    cloud: str
    flavor: str
    network: str = ""
    ways: WayOptions = field(default_factory=WayOptions)

    def template(self) -> Template:
        """Return the template of a server whose agent polls."""
        properties = {"flavor": self.flavor, "user_data_format": "SOFTWARE_CONFIG"}
        server = {"type": "OS::Nova::Server", "properties": properties}
        body = {"heat_template_version": "2018-08-31", "resources": {"server": server}}
        return Template(source="a server for a test", template=body)


class CloudPlatform(Platform):
    """A project in a cloud, for one of its servers.

    :param begin: begins a deployment on the server with that id.
    """

    def __init__(
        self,
        cloud: OsCloud,
        server: CloudServer,
        begin: Callable[[str, DeploymentSpec], Deployment],
    ) -> None:
        self.server: CloudServer = server
        self.events = cloud.events
        self._cloud = cloud
        self._begin = begin

    def deploy(self, spec: DeploymentSpec) -> Deployment:
        """Begin a deployment on the server, in a stack with the tags of the run."""
        return self._begin(self.server.id, spec)

    def diagnose(
        self, deployments: Sequence[Deployment], *, status: str, reason: str, **more: Any
    ) -> Diagnosis | None:
        """See :meth:`Platform.diagnose`; the reason as far as the cloud shows it."""
        del deployments
        tracker = self._tracker()
        return diagnose(self.events, tracker, stack_status=status, stack_reason=reason, **more)

    def leave_evidence(
        self, deployments: Sequence[Deployment], test: EndedTest, *, whole: bool
    ) -> None:
        """See :meth:`Platform.leave_evidence`; without a disk."""
        del whole
        # Events without a server are the cloud's own.
        seen = [each for each in self.events if each.server in ("", self.server.id)]
        facts = {"cloud": self._cloud.name}
        verdict = of_test(
            Subject(image="", template=test.name, server=self.server.name, facts=facts),
            self._tracker(),
            test,
            status=deployments[-1].stack.status if deployments else "",
            noticed=notice(seen, {self.server.id: ""}),
            now=time.monotonic(),
            artifacts=str(self.server.directory),
        )
        Folder(self.server.directory).finish(verdict, seen, report=report(verdict, seen))

    def pause(self, *, say: Callable[[str], None]) -> None:
        """Report that the server cannot stay up: it is deleted with its test."""
        say(f'the server "{self.server.name}" is in a cloud, and goes with its test')

    def _tracker(self) -> StageTracker:
        tracker = StageTracker(self.events, self.server.id, unseen=UNSEEN)
        tracker.close()
        return tracker


class CloudPool:
    """The servers of one image in a cloud; see :class:`hotplate.plugin.pool.ServerPool`.

    :param fit: the image, the key pair and the network of each server.
    """

    def __init__(
        self, project: Project, ways: Ways, place: Place, *, fit: Fit, folder: Path
    ) -> None:
        self._project = project
        self._ways = ways
        self._place = place
        self._fit = fit
        self._folder = folder
        self._numbers = itertools.count(1)
        self._owned = ExitStack()
        self._lent = False

    def server(self, *, cold: bool = False, another: bool = False) -> ServerUnderTest:
        """Return a server that no test has used.

        :raises HotplateError: while another is in use, or when none can be made.
        """
        # A cloud has no saved state: each server is booted.
        del cold, another
        if self._lent:
            raise HotplateError("a module uses the fixture server or booted_server, not both")
        name = self._next_name()
        stack = make_stack(self._project, self._place.template(), self._fit, name=name)
        self._lent = True
        following = self._follow(name, stack.id)
        self._owned.enter_context(following)
        followed = self._created(stack, following)
        cloud = self._project.cloud
        directory = self._folder / name / folder_name(followed.name)
        server = CloudServer(cloud, followed, self._ways, directory)
        # Closed in reverse: the connections first, then the following of its stack.
        self._owned.callback(server.close)
        return ServerUnderTest(CloudPlatform(cloud, server, self._deploy))

    def give_back(self, server: ServerUnderTest) -> None:
        """Delete a server, with its deployments."""
        del server
        self._lent = False
        self._owned.close()
        cloud = self._project.cloud
        # Only the stacks: the image and the key pair serve the next test.
        stacks = [each for each in of(cloud, self._project.run) if each.kind == "stack"]
        if problems := remove(cloud, stacks):
            raise HotplateError("; ".join(problems))

    def close(self) -> None:
        """Stop following the stacks; the project removes its resources."""
        self._owned.close()

    def clear_faults(self) -> None:
        """Do nothing: a cloud has no planted faults."""

    def _deploy(self, server: str, spec: DeploymentSpec) -> Deployment:
        """Begin a deployment, and follow its stack until the server is given back."""
        cloud, name = self._project.cloud, self._next_name()
        with cloud.translated("a deployment"):
            deployment = Deployment(cloud, server, spec, stack=name, tags=self._project.run.tags)
        self._owned.enter_context(self._follow(name, deployment.stack.id))
        return deployment

    def _next_name(self) -> str:
        return f"{self._project.run.name}-{next(self._numbers)}"

    def _follow(self, stack: str, identity: str) -> Following:
        return Following(
            self._project.cloud,
            stack=stack,
            stack_id=identity,
            directory=self._folder / stack,
        )

    def _created(self, stack: Stack, following: Following) -> Followed:
        """Wait for the server, and return it.

        :raises HotplateError: when it was not created, or the cloud no longer answers.
        """
        stack.wait(seconds=CREATE_SECONDS)
        if stack.state != "COMPLETE":
            cloud = self._project.cloud.name
            raise refusal(cloud, stack.reason) or SubjectError(
                f"the server for the test could not be made: {stack.reason}"
            )
        # The following polls: it may see the server some time after the stack is complete.
        deadline = GuestDeadline(CREATE_SECONDS, "the server to be shown")
        return retry(
            lambda _: next((each for each in following.servers.values() if each.name), None),
            deadline,
            every=0.5,
        )


@contextlib.contextmanager
def open_cloud_pool(
    image: Image, settings: Settings, folder: Path, place: Place, *, say: Callable[[str], None]
) -> Iterator[CloudPool]:
    """Upload an image to a cloud, and supply servers that boot it; all is removed at the end.

    :param folder: of the run.
    :param say: called with sentences about slow steps.
    """
    cloud = OsCloud.open(place.cloud, EventLog())
    project = Project(
        cloud,
        runs=settings.cache / RUNS,
        uninterrupted=contextlib.nullcontext,
        keep=False,
        say=say,
    )
    with project, Ways(place.ways, key=project.key) as ways:
        # Looked up before anything is made: a wrong name is no reason to upload.
        fit = connection(cloud, place.template(), network=place.network)
        key_pair = project.make_key_pair()
        say(f"uploading {image.path} to the cloud {cloud.name}")
        fit = replace(fit, image=project.make_image(image), key_pair=key_pair)
        pool = CloudPool(project, ways, place, fit=fit, folder=folder)
        with contextlib.closing(pool):
            yield pool
