"""Supplies tests with servers: each restored from an image's warm state, or booted."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotplate.errors import HotplateError, ImageError, MachineLostError
from hotplate.events.log import EventLog
from hotplate.plugin.server import Platform, ServerUnderTest
from hotplate.session import access
from hotplate.stacks.deployment import Deployment, DeploymentSpec
from hotplate.testbed import warm_state as warm
from hotplate.testbed.first_boot import boot, boot_without_agent
from hotplate.testbed.links import Links
from hotplate.testbed.server import Server
from hotplate.testbed.testbed import Testbed
from hotplate.trial.guest_probe import diagnose_since
from hotplate.verdict.diagnosis import Diagnosis
from hotplate.verdict.verdict import EndedTest

if TYPE_CHECKING:
    from hotplate.image.inspect import Image
    from hotplate.settings import Settings


class LocalPlatform(Platform):
    """A testbed of this host, for one of its servers.

    :param since: the length of the testbed's event log before the server was started.
    :param agent: whether its image has one.
    """

    def __init__(
        self, testbed: Testbed, server: Server, *, since: int = 0, agent: bool = True
    ) -> None:
        self.testbed = testbed
        self.server: Server = server
        self.events = testbed.events
        self.since = since
        self._agent = agent

    def deploy(self, spec: DeploymentSpec) -> Deployment:
        """Begin a deployment on the server.

        :raises ImageError: when the image has no agent.
        """
        if not self._agent:
            raise ImageError(
                f'the image "{self.testbed.image.path}" has no agent, so no deployment runs',
                hint=f"hotplate inspect {shlex.quote(str(self.testbed.image.path))}",
            )
        return Deployment(self.testbed.cloud, self.server.id, spec)

    def diagnose(self, deployments: Sequence[Deployment], **more: Any) -> Diagnosis | None:
        """See :meth:`Platform.diagnose`; asks the guest too."""
        stacks = [each.stack.name for each in deployments]
        return diagnose_since(self.events, self.server, since=self.since, stacks=stacks, **more)

    def leave_evidence(
        self, deployments: Sequence[Deployment], test: EndedTest, *, whole: bool
    ) -> None:
        """See :meth:`Platform.leave_evidence`."""
        from hotplate.trial import evidence

        evidence.leave(
            self.testbed, self.server, deployments, test, since=self.since, keep_disk=whole
        )

    def pause(self, *, say: Callable[[str], None]) -> None:
        """Keep the server up and accept connections until Enter is pressed."""
        access.pause(self.testbed, [self.server], self.server.directory / "doors", say=say)

    def stop(self) -> None:
        """Cut the power."""
        self.testbed.compute.stop(self.server.id)

    def start(self) -> None:
        """Switch the machine on again, from its disk."""
        self.testbed.compute.start(self.server.id)

    @property
    def links(self) -> Links:
        """Return the server's links."""
        return self.server.links


class ServerPool:
    """The servers of one image, in a cloud with a warm state's database, or an empty one.

    :param agent: whether the image has one.
    :param reader: whether the image has a program that reads its metadata.
    """

    def __init__(
        self,
        testbed: Testbed,
        state: warm.WarmState | None,
        *,
        agent: bool = True,
        reader: bool = True,
    ) -> None:
        self.testbed = testbed
        self._agent = agent
        self._reader = reader
        self._state = state
        # Restored at once, so that a state that does not restore is noticed first.
        self._ready = None if state is None else state.restore(testbed)
        self._lent = False

    def server(self, *, cold: bool = False, another: bool = False) -> ServerUnderTest:
        """Return a server that no test has used.

        :param cold: boot it, even when there is a state to restore.
        :param another: the next test is going to ask for a restored one, too.
        :raises HotplateError: while another is in use, or when none can be made.
        """
        if self._lent:
            raise HotplateError(
                'the fixtures "server" and "booted_server" were asked for at once, but there is '
                "one server of an image at a time; a module uses one or the other"
            )
        since = len(self.testbed.events)
        if not self._agent:
            ready = boot_without_agent(self.testbed, reader=self._reader)
        elif cold or self._state is None:
            ready = boot(self.testbed)
        # The restored server has its events from the start of the log on.
        elif self._ready is not None:
            ready, self._ready, since = self._ready, None, 0
            if another:
                self._state.restore_ahead(self.testbed)
        else:
            ready = self._state.restore(self.testbed, another=another)
        self._lent = True
        return ServerUnderTest(LocalPlatform(self.testbed, ready, since=since, agent=self._agent))

    def clear_faults(self) -> None:
        """Remove all planted faults."""
        self.testbed.cloud.faults.clear()

    def give_back(self, server: ServerUnderTest) -> None:
        """End a server, and remove its deployments from Heat, so that no other server gets them."""
        self._lent = False
        self.testbed.compute.delete(server.id)
        # First prevent new deployments, then remove the existing ones.
        for deployment in server.deployments:
            deployment.forget()
        from heatclient import exc

        heat = self.testbed.cloud.heat()
        for each in heat.software_deployments.list(server_id=server.id):
            # Its stack is being deleted, and may have removed it already.
            with contextlib.suppress(exc.HTTPNotFound):
                heat.software_deployments.delete(each.id)


@contextlib.contextmanager
def open_pool(
    image: Image,
    settings: Settings,
    folder: Path,
    *,
    cold: bool,
    agent: bool = True,
    reader: bool = True,
    say: Callable[[str], None],
    others: Mapping[str, Image] | None = None,
) -> Iterator[ServerPool]:
    """Open the cloud of an image on its warm state, which is made when it does not exist.

    A damaged state is removed and made again, once.

    :param folder: the parent of its folder.
    :param cold: boot each server, without a state.
    :param agent: whether the image has one; without it there is no state to save.
    :param reader: whether the image has a program that reads its metadata.
    :param say: called with sentences about slow steps.
    :param others: more images by name; see :class:`~hotplate.testbed.testbed.Testbed`.
    """
    with contextlib.ExitStack() as owned:
        for last_try in (False, True):
            directory = Path(tempfile.mkdtemp(prefix=f"{image.path.stem}-", dir=folder))
            testbed_with = partial(
                Testbed, image, directory=directory, events=EventLog(), others=others
            )
            if cold or not agent:
                testbed = owned.enter_context(testbed_with(settings=settings))
                pool = ServerPool(testbed, None, agent=agent, reader=reader)
                break
            state = warm.find_or_make(image, settings, directory=directory / "first-boot", say=say)
            settings_of_it = state.settings_from(settings)
            testbed = testbed_with(settings=settings_of_it, ahead=state.restore_ahead)
            with contextlib.ExitStack() as trial:
                try:
                    # The lock keeps other processes from removing the state.
                    trial.enter_context(state.in_use())
                    # Before the cloud starts, which opens the databases.
                    state.lend_database(directory / "cloud")
                    pool = ServerPool(trial.enter_context(testbed), state)
                except MachineLostError as error:
                    if last_try:
                        raise
                    say(f"{error.message}; booting the image once more")
                else:
                    # The contexts of this try belong to the outer stack now, and last as long as
                    # the pool.
                    owned.push(trial.pop_all())
                    break
            # Outside of in_use(), whose lock would keep the state.
            warm.discard(state)
        yield pool
