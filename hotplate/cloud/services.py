"""The services of a cloud, in the order in which they start.

Only :class:`~hotplate.cloud.cloud.Cloud` imports this module, after Heat's threading backend has
been chosen, because it imports Heat.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hotplate.cloud.database.store import Store
from hotplate.cloud.glance.api import GlanceApi
from hotplate.cloud.glance.images import Images
from hotplate.cloud.heat import api as heat_api
from hotplate.cloud.heat.describe_cache import DatabaseVersion
from hotplate.cloud.heat.patches import TaskWaker
from hotplate.cloud.http.faults import Faults
from hotplate.cloud.http.gateway import WSGIApp, after_writes
from hotplate.cloud.keystone.api import KeystoneApi
from hotplate.cloud.keystone.identity import Identity
from hotplate.cloud.neutron.api import NeutronApi
from hotplate.cloud.neutron.networking import Networking
from hotplate.cloud.neutron.taken_for_granted import TakenForGranted
from hotplate.cloud.nova import metadata as metadata_service
from hotplate.cloud.nova.api import NovaApi
from hotplate.cloud.nova.compute import Compute, GuestServices
from hotplate.cloud.nova.neutron import RouterUpdates, ServerPorts, requested_networks
from hotplate.cloud.nova.server_records import DEFAULTS, LIFTED
from hotplate.cloud.nova.servers import Servers
from hotplate.cloud.options import CloudOptions
from hotplate.cloud.swift import SwiftApi
from hotplate.cloud.zaqar.queues import Queues, ZaqarApi
from hotplate.events.log import EventLog


class Parts:
    """The services without their HTTP, of which each knows only the ones above it.

    :param directory: of the cloud.
    :param guest_services: services of the cloud that ``compute`` needs for guests.
    :param host: service -> its URL on loopback.
    :param progress: woken by news that Heat's tasks may be waiting for.
    :param closing: closes the databases.
    """

    def __init__(
        self,
        directory: Path,
        compute: Compute,
        events: EventLog,
        options: CloudOptions,
        faults: Faults,
        *,
        guest_services: GuestServices,
        host: dict[str, str],
        progress: TaskWaker,
        closing: ExitStack,
    ) -> None:
        self.options = options
        self.faults = faults
        self.compute = compute
        self._heat_database = directory / "heat.db"
        self._closing = closing
        self.store = Store(directory / "neighbours.db")
        closing.callback(self.store.close)
        self.identity = Identity(self.store)
        # Keystone checks the signatures of requests to cfn, so the skew of either counts.
        self.identity.skew = lambda: faults.skew("keystone") + faults.skew("cfn")
        self.identity.host = host
        project = self.identity.owner.project_id
        self.queues = Queues(self.store, notify=progress.notify, lift_limits=options.lift_limits)
        self.zaqar_key = self.store.setting("zaqar_key", secrets.token_hex(32))
        self.images = Images(
            self.store,
            directory / "images",
            session=options.images,
            owner=project,
            by_name=options.images_by_name,
            upload_refusal=options.upload_refusal,
            # Called later: the servers are made below.
            used=lambda: {each.spec.image for each in self.servers.all()},
        )
        operator = self.identity.service.project_id
        self.networking = Networking(self.store, project=project, operator=operator)
        self.granted = TakenForGranted(self.networking, project=project)
        self.servers = Servers(
            self.store,
            compute,
            events,
            services=guest_services,
            request_limit=options.request_limit,
            public_key=options.public_key,
            ports=(
                ServerPorts(self.networking, project=project, network_data=options.own_network_data)
                if compute.networked
                else None
            ),
            requested_networks=lambda wanted: requested_networks(self.networking, wanted),
            image_refusal=self.images.refusal,
            image_id=self.images.id_of,
            quotas=LIFTED if options.lift_limits else DEFAULTS,
        )
        # Closed before the store, whose callback was added earlier.
        closing.callback(self.servers.close)
        self.metadata = metadata_service.Metadata(
            self.servers, project=project, own_network_data=options.own_network_data
        )

    @cached_property
    def heat_version(self) -> DatabaseVersion:
        """The version of Heat's database, which exists as soon as the engine has started."""
        version = DatabaseVersion(self._heat_database)
        self._closing.callback(version.close)
        return version


def _neutron(parts: Parts) -> WSGIApp:
    app = NeutronApi(parts.networking, parts.identity)
    if not parts.compute.networked:
        return app
    routers = RouterUpdates(parts.networking, parts.compute)
    # The database of a cloud that is started again has routers.
    routers.update()
    return after_writes(app, routers.update)


def _swift(parts: Parts) -> WSGIApp:
    return SwiftApi(
        parts.store,
        parts.identity,
        skew=lambda: parts.faults.skew("swift"),
        lift_limits=parts.options.lift_limits,
    )


@dataclass(frozen=True)
class Service:
    """A service of the cloud.

    :param name: as in :data:`~hotplate.cloud.http.addresses.SERVICES`, which says whether guests
        reach it.
    :param app: makes its application; None for Zaqar's websockets, which are no WSGI.
    :param on_host: it listens on the host as well.
    :param wakes_heat: its changes may be news that a task of Heat is waiting for.
    """

    name: str
    app: Callable[[Parts], WSGIApp] | None
    on_host: bool = True
    wakes_heat: bool = False


#: The services that start before Heat's engine, which calls them while it starts.
BESIDE_HEAT = (
    Service("keystone", lambda parts: KeystoneApi(parts.identity)),
    Service("glance", lambda parts: GlanceApi(parts.images, parts.identity)),
    Service(
        "nova",
        lambda parts: NovaApi(parts.servers, parts.identity, parts.store),
        wakes_heat=True,
    ),
    Service("neutron", _neutron),
    Service("swift", _swift, wakes_heat=True),
    Service("zaqar", lambda parts: ZaqarApi(parts.queues, parts.identity, secret=parts.zaqar_key)),
    Service("zaqar-websocket", None),
    Service(
        "metadata", lambda parts: metadata_service.app(parts.metadata, parts.servers), on_host=False
    ),
)

#: The services that start after Heat's engine, which answers for them.
OF_HEAT = (
    Service(
        "heat", lambda parts: heat_api.heat_app(parts.identity, parts.heat_version), wakes_heat=True
    ),
    Service(
        "cfn",
        lambda parts: heat_api.cfn_app(
            parts.identity, parts.heat_version, signature_ttl=parts.options.signature_ttl
        ),
        wakes_heat=True,
    ),
)
