"""Supplies tests with servers in a cloud: each has a stack of its own, deleted after its test."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from hotplate.elsewhere.following import Followed, Following
from hotplate.elsewhere.leftovers import of, remove
from hotplate.elsewhere.os_cloud import OsCloud
from hotplate.elsewhere.project import Project
from hotplate.elsewhere.refusals import refusal
from hotplate.elsewhere.ways import WayOptions, Ways
from hotplate.errors import HotplateError, SubjectError
from hotplate.events.log import EventLog
from hotplate.image.inspect import Image
from hotplate.plugin.cloud_server import CloudServerUnderTest
from hotplate.settings import Settings
from hotplate.stacks.stack import Stack
from hotplate.stacks.template import Template
from hotplate.timing.deadline import GuestDeadline, retry
from hotplate.trial.cloud_trial import RUNS, make_stack

CREATE_SECONDS = 600.0


@dataclass(frozen=True)
class Place:
    """The location of tests' servers in a cloud.

    :param cloud: of ``clouds.yaml``.
    :param flavor: of each server.
    :param network: of each server; "" for the project's own.
    :param ways: the options for connections to them.
    """

    cloud: str
    flavor: str
    network: str = ""
    ways: WayOptions = field(default_factory=WayOptions)

    def template(self) -> Template:
        """Return the template of a server whose agent polls."""
        properties: dict[str, object] = {
            "flavor": self.flavor,
            "user_data_format": "SOFTWARE_CONFIG",
        }
        if self.network:
            properties["networks"] = [{"network": self.network}]
        server = {"type": "OS::Nova::Server", "properties": properties}
        body = {"heat_template_version": "2018-08-31", "resources": {"server": server}}
        return Template(source="a server for a test", template=body)


class CloudPool:
    """The servers of one image in a cloud; see :class:`hotplate.plugin.pool.ServerPool`."""

    def __init__(
        self, project: Project, ways: Ways, place: Place, *, image: str, key_pair: str, folder: Path
    ) -> None:
        self._project = project
        self._ways = ways
        self._place = place
        self._image = image
        self._key_pair = key_pair
        self._folder = folder
        self._numbers = itertools.count(1)
        self._owned = ExitStack()
        self._lent = False

    def server(self, *, cold: bool = False) -> CloudServerUnderTest:
        """Return a server that no test has used.

        :raises HotplateError: while another is in use, or when none can be made.
        """
        # A cloud has no saved state: each server is booted.
        del cold
        if self._lent:
            raise HotplateError("a module uses the fixture server or booted_server, not both")
        name = self._next_name()
        stack = make_stack(
            self._project,
            self._place.template(),
            image=self._image,
            key_pair=self._key_pair,
            name=name,
        )
        self._lent = True
        following = self._follow(name, stack.id)
        self._owned.enter_context(following)
        server = CloudServerUnderTest(
            self._project,
            self._created(stack, following),
            self._ways,
            following=self._follow,
            name=self._next_name,
            directory=self._folder / name,
        )
        # Closed in reverse: the connections first, then the following of its stack.
        self._owned.callback(server.close)
        return server

    def give_back(self, server: CloudServerUnderTest) -> None:
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
        key_pair = project.make_key_pair()
        say(f"uploading {image.path} to the cloud {cloud.name}")
        identity = project.make_image(image)
        pool = CloudPool(project, ways, place, image=identity, key_pair=key_pair, folder=folder)
        with contextlib.closing(pool):
            yield pool
