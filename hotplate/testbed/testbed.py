"""A testbed: a cloud and its servers, put together.

:class:`Testbed` owns all of it and ends it on every path.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Self

from hotplate.cloud.cloud import Cloud
from hotplate.cloud.nova.server_records import NoSuchServerError
from hotplate.cloud.options import CloudOptions
from hotplate.errors import HostError, MachineLostError
from hotplate.events.log import EventLog
from hotplate.heat_releases import check as check_release
from hotplate.image.inspect import Image
from hotplate.settings import Settings, WiringChoice
from hotplate.testbed.compute import LocalCompute
from hotplate.testbed.server import Server

#: Enough for one server, with Heat and its neighbours, and room to spare.
OPEN_FILES = 256


class Testbed:
    """An image on the hotplate: a cloud, and the servers that it boots; a context manager.

    ::

        with Testbed(image, settings=settings, directory=folder, events=events) as testbed:
            testbed.cloud.heat().stacks.create(...)

    :param directory: for everything that this run writes.
    :param others: more images by name; with them a server boots the one that its template names,
        and without them every name means ``image``.
    :param networks: attach servers to the networks of their ports; not when the settings choose a
        wiring, which isolates each server.
    :param saves: whether its servers' states are going to be saved.
    :param ahead: called with the testbed before its cloud starts, for what need not wait for that.
    """

    # Not a test class; pytest collects Test*.
    __test__ = False

    def __init__(
        self,
        image: Image,
        *,
        settings: Settings,
        directory: Path,
        events: EventLog,
        options: CloudOptions | None = None,
        others: Mapping[str, Image] | None = None,
        networks: bool = True,
        saves: bool = False,
        ahead: Callable[[Testbed], None] = lambda _: None,
    ) -> None:
        self.image = image
        self.settings = settings
        self.directory = directory
        self.events = events
        options = options or CloudOptions()
        lift_limits = options.lift_limits or settings.lift_limits
        self._options = replace(options, lift_limits=lift_limits)
        self._others = others
        networked = networks and settings.wiring is WiringChoice.AUTO
        self._networks = directory / "networks" if networked else None
        self._saves = saves
        self._ahead = ahead
        self._owned = ExitStack()

    def __enter__(self) -> Self:
        check_release(self.settings.heat, self.settings.cache)
        _check_open_files()
        with ExitStack() as owned:
            self.compute = LocalCompute(
                self.image,
                settings=self.settings,
                directory=self.directory / "servers",
                events=self.events,
                networks=self._networks,
                others=self._others,
                saves=self._saves,
            )
            images = self.compute.images
            options = replace(
                self._options,
                images=images.shown(),
                images_by_name=images.by_name,
                upload_refusal=images.refusal,
            )
            self.cloud = Cloud(
                directory=self.directory / "cloud",
                compute=self.compute,
                events=self.events,
                options=options,
            )
            with ExitStack() as starting:
                starting.callback(self.compute.close)
                self._ahead(self)
                owned.enter_context(self.cloud)
                starting.pop_all()
            # The cloud is made with the images, so its uploads are known to them only now.
            images.uploaded = self.cloud.parts.images.uploaded
            # Servers end before the cloud that they use.
            owned.callback(self.compute.close)
            self._owned = owned.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._owned.close()

    @property
    def servers(self) -> list[Server]:
        """Return the servers, oldest first."""
        return list(self.compute.servers.values())

    def server(self, server_id: str) -> Server | None:
        """Return the server with this Nova id; None when there is none."""
        return self.compute.servers.get(server_id)

    def names(self) -> dict[str, str]:
        """Return Nova's current names of the servers, by id; a rename changes them."""
        return {each.spec.id: each.spec.name for each in self.cloud.servers.all()}

    def addresses(self, server: Server) -> set[str]:
        """Return the addresses that Nova shows for a server, fixed and floating."""
        nova = self.cloud.servers
        try:
            interfaces = nova.interfaces(nova.get(server.spec.id))
        except NoSuchServerError:
            return set()
        return {str(shown["addr"]) for each in interfaces for shown in each.addresses()}

    @property
    def fault(self) -> Exception | None:
        """Return the first error at the start of a server; see :class:`LocalCompute`."""
        return self.compute.fault

    def go_on(self) -> list[str]:
        """Start the servers that an earlier session in this directory left.

        :return: a sentence for each server that cannot be started, with the reason.
        """
        problems = []
        for server in self.cloud.servers.all():
            try:
                self.compute.go_on(server.spec, self.cloud)
            except MachineLostError as error:
                problems.append(error.message)
        return problems


def _check_open_files() -> None:
    """Check the soft limit of this process's open files (setrlimit(2), RLIMIT_NOFILE).

    :raises HostError: when it is too low for a run.
    """
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        raise HostError(
            f"this host allows a process {soft} open files, but a run needs {OPEN_FILES}",
            hint="ulimit -n 4096",
        )
