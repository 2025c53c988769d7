"""The cloud as a whole: Heat and the other services, started and stopped together."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotplate.cloud import expected_deployments
from hotplate.cloud.database.store import copy_database
from hotplate.cloud.glance.images import UNDER_TEST
from hotplate.cloud.heat import engine as heat_engine
from hotplate.cloud.heat import patches
from hotplate.cloud.http import limits
from hotplate.cloud.http.addresses import (
    HOST_SERVICES,
    PORTS,
    REGION,
    SERVICES,
    Side,
    guest_base,
)
from hotplate.cloud.http.faults import Fault, Faults
from hotplate.cloud.http.gateway import Front, Proxy, WSGIApp, after_writes
from hotplate.cloud.http.quota import Quota
from hotplate.cloud.http.serving import Serving, raise_descriptors
from hotplate.cloud.keystone import heat_backend as keystone_backend
from hotplate.cloud.keystone.identity import Credentials
from hotplate.cloud.nova.compute import Compute
from hotplate.cloud.options import CloudOptions
from hotplate.cloud.zaqar.websocket import WebsocketServer
from hotplate.errors import UsageError
from hotplate.events import expected
from hotplate.events.kinds import GuestFlood, StackResource
from hotplate.events.log import EventLog

if TYPE_CHECKING:
    from hotplate.cloud import services

#: Maximum number of open connections of the host's own clients.
HOST_CONNECTIONS = 500

#: A server that a real Heat cannot make: it asks Nova without networks, and novaclient refuses that
#: with the microversion that Heat uses ("nics are required after microversion 2.36").
UNCONNECTED = "network (the template names none) of the server"


@dataclass(frozen=True, order=True)
class StoodIn:
    """A resource of a template that is not real.

    :param kind: the resource type, or ``image``, ``flavor``, ``key pair``, :data:`UNCONNECTED`.
    :param name: the resource's name in its template, or the name that the template gives.
    """

    kind: str
    name: str


class Cloud:
    """A real Heat with the services that it needs, in this process.

    There can be one at a time in a process.  Use it as a context manager::

        with Cloud(directory=path, compute=compute, events=EventLog()) as cloud:
            cloud.heat().stacks.create(stack_name="demo", template=template)

    :param directory: holds the databases (``heat.db``, ``neighbours.db``) and Heat's log
        (``heat.log``); a cloud started on the same directory again resumes its stacks.
    :param compute: boots the servers.
    :param events: the log of every request, signal and change of a resource.
    :ivar parts: the services without their HTTP, once it has started; ``identity``,
        ``networking``, ``servers`` and ``metadata`` are those of them that callers use.
    :ivar proxy: the address of an ``http_proxy``, by which a client on the host reaches the
        services at the addresses for guests, which Heat hands out for signals.
    """

    def __init__(
        self,
        *,
        directory: Path,
        compute: Compute,
        events: EventLog,
        options: CloudOptions | None = None,
    ) -> None:
        self.directory = directory
        self.events = events
        self.options = options or CloudOptions()
        self.faults = Faults()
        self._compute = compute
        self._exit = ExitStack()
        self._apps: dict[str, WSGIApp] = {}
        self._host: dict[str, str] = {}
        self._fronts: dict[str, Front] = {}
        self.proxy = ""
        self._closing = False
        self._unconnected: set[str] = set()
        self.progress = patches.TaskWaker()
        self._labels = expected_deployments.Labels()

    # -- life --------------------

    def __enter__(self) -> Cloud:
        try:
            # Heat imports its resources when it starts.
            with heat_engine.without_garbage_collection():
                self._start()
        except BaseException:
            # Python does not call __exit__ when __enter__ raises.
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop everything; keep the directory."""
        # First: _doubt() then ignores failures of Heat while its services go away.
        self._closing = True
        # Requests that hang in a fault would keep their threads.
        self.faults.clear()
        self._exit.close()

    def _start(self) -> None:
        raise_descriptors()
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Heat's configuration and registries are global in a process.
        self._exit.callback(heat_engine.claim())
        heat_engine.load()
        # Only now: Heat must not be imported before its threading backend is chosen.
        with heat_engine.without_unused_modules():
            from hotplate.cloud import services

        # Listen first: the addresses go into the catalogue, and into Heat's configuration.
        listeners = self._listen()
        self._make_parts()
        heat_listener = self._connect_heat()
        # Heat's engine calls these while it starts.
        for service in services.BESIDE_HEAT:
            self._open(service, listeners, self._neighbours)
        self._start_engine()
        for service in services.OF_HEAT:
            self._open(service, listeners, self._serving)
        # Heat's requests to itself arrive here.
        self._exit.callback(self._serve("heat", heat_listener, serving=self._neighbours))
        self._serve_proxy()

    def _make_parts(self) -> None:
        """Make the services without their HTTP, and the threads that answer for them."""
        from hotplate.cloud.services import Parts

        self.parts = Parts(
            self.directory,
            self._compute,
            self.events,
            self.options,
            self.faults,
            guest_services=self,
            host=self._host,
            progress=self.progress,
            closing=self._exit,
        )
        self.identity = self.parts.identity
        self.networking = self.parts.networking
        self.servers = self.parts.servers
        self.metadata = self.parts.metadata
        self._serving = self._host_serving(limits.HEAT_THREADS)
        # Heat's answers wait for the services that it calls: requests to Heat must not take the
        # threads, nor the connections, of those services.
        self._neighbours = self._host_serving(None)

    def _connect_heat(self) -> socket.socket:
        """Let Heat's clients use the services; return the listener for Heat's requests to itself.

        The host's listeners answer few requests at a time, and each of these waits for the engine.
        """
        from hotplate.cloud.heat import client_plugins

        keystone_backend.use(self.identity)
        self._exit.callback(keystone_backend.use, None)
        listener = self._listener()
        heat = f"http://127.0.0.1:{listener.getsockname()[1]}"
        client_plugins.use(
            client_plugins.Used(
                {**self._host, "heat": heat},
                self.parts.granted,
                self._compute.networked,
                self.parts.images.refusal,
                self.progress.wait,
                self._unconnected.add,
            )
        )
        self._exit.callback(client_plugins.use, client_plugins.Used())
        return listener

    def _start_engine(self) -> None:
        environment_dir = self.options.environment_dir or self.directory / "environment.d"
        environment_dir.mkdir(exist_ok=True)
        keystone_url = self._host["keystone"] + "/v3"
        service = self.identity.service
        self._engine = heat_engine.Engine(
            database=self.directory / "heat.db",
            log=self.directory / "heat.log",
            environment_dir=environment_dir,
            keystone_url=keystone_url,
            trustee={
                "auth_url": keystone_url,
                "user_id": service.user_id,
                "password": service.password,
            },
            end_tasks=self.progress.stop,
            on_failure=self._doubt,
            lift_limits=self.options.lift_limits,
        )
        # Heat is patched before its threads start.
        self._exit.enter_context(
            patches.apply(
                patches.Hooks(
                    progress=self.progress,
                    on_event=self._on_event,
                    on_deployments=self._on_deployments,
                    on_failure=self._doubt,
                    guest_to_host=self._guest_to_host,
                )
            )
        )
        self._engine.start()
        # An ExitStack closes in reverse: the engine stops while the patches still hold.
        self._exit.callback(self._engine.stop)

    def _open(
        self, service: services.Service, listeners: Mapping[str, socket.socket], serving: Serving
    ) -> None:
        """Make the application of a service, and serve it on the host."""
        if service.app is not None:
            app = service.app(self.parts)
            # Each change wakes the engine's tasks.
            wakes = service.wakes_heat
            self._apps[service.name] = after_writes(app, self.notify) if wakes else app
        if service.on_host:
            listener = listeners[service.name]
            self._exit.callback(self._serve(service.name, listener, serving=serving))

    def _listen(self) -> dict[str, socket.socket]:
        """Return a loopback listener on a free port for each service but the metadata service."""
        listeners = {name: self._listener() for name in SERVICES if name != "metadata"}
        for name, listener in listeners.items():
            scheme = "ws" if name == "zaqar-websocket" else "http"
            self._host[name] = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        return listeners

    def _listener(self) -> socket.socket:
        """Return a loopback listener on a free port."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._exit.callback(listener.close)
        return listener

    def _host_serving(self, threads: int | None) -> Serving:
        """Serve listeners of the host until the cloud ends."""
        serving = Serving(
            events=self.events,
            threads=threads,
            connections=HOST_CONNECTIONS,
            # Heat's clients would keep hundreds open in a long session, and closing an idle one
            # just as its next request is sent would end a run.
            keep_alive=False,
            lift_limits=self.options.lift_limits,
        )
        self._exit.callback(serving.stop)
        return serving

    def _serve_proxy(self) -> None:
        """Start the proxy that leads clients of the host to the services' addresses for guests."""
        listener = self._listener()
        self.proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
        proxy = Proxy(
            self._fronts,
            self._host,
            events=self.events,
            faults=self.faults,
            lift_limits=self.options.lift_limits,
        )
        self._exit.callback(self._serving.add(listener, proxy))

    # -- serving --------------------

    def _serve(
        self,
        service: str,
        listener: socket.socket,
        *,
        serving: Serving,
        server_id: str = "",
        quota: Quota | None = None,
    ) -> Callable[[], None]:
        """Answer on a listener, a guest's if ``server_id`` is given; return the end of that."""
        if service == "zaqar-websocket":
            return WebsocketServer(
                listener,
                self.parts.queues,
                self.identity,
                server_id=server_id,
                events=self.events,
                faults=self.faults,
                quota=quota,
                lift_limits=self.options.lift_limits,
            ).close
        front = Front(
            service,
            self._apps[service],
            # The listener decides, so that a guest cannot claim to be the host.
            side=Side.GUEST if server_id else Side.HOST,
            server_id=server_id,
            events=self.events,
            faults=self.faults,
            quota=quota,
        )
        if not server_id:
            self._fronts[service] = front
        return serving.add(listener, front)

    def serve(
        self,
        server_id: str,
        *listeners: Mapping[int, socket.socket],
        vendor_data: str = "",
        isolated: bool = False,
    ) -> ExitStack:
        """Answer one guest, identified by listeners of its own.

        :param listeners: for each of its interfaces, a port of ``PORTS`` (http/addresses.py) -> a
            listening
            socket, TCP or unix, that the guest reaches at that port of 169.254.169.254.  They are
            closed with the result.  The guest's limits count over all of them.
        :param vendor_data: a cloud-config for the guest's ``vendor_data.json``.
        :param isolated: its machine has one link of its own, and none of its ports.
        :return: closes the listeners when its ``with`` block, or ``close()`` of its stack, ends.
        """
        unknown = set().union(*listeners) - set(PORTS)
        if unknown:
            raise UsageError(f"the cloud serves nothing on port {sorted(unknown)[0]}")
        if vendor_data:
            self.metadata.set_vendor_data(server_id, vendor_data)
        if isolated:
            self.metadata.isolate(server_id)
        served = ExitStack()
        serving = Serving(
            events=self.events,
            threads=limits.THREADS,
            connections=limits.CONNECTIONS,
            sides=len(listeners),
            lift_limits=self.options.lift_limits,
        )
        served.callback(serving.stop)

        def tell(fault: str, text: str) -> None:
            self.events.add(GuestFlood(fault, text), server=server_id)

        quota = Quota(tell)
        for port, listener in ((port, each[port]) for each in listeners for port in each):
            served.callback(
                self._serve(
                    PORTS[port], listener, serving=serving, server_id=server_id, quota=quota
                )
            )
        return served

    def notify(self) -> None:
        """Wake Heat's tasks, because there is news that they may be waiting for."""
        self.progress.notify()

    def _guest_to_host(self, url: str) -> str:
        for service, host in self._host.items():
            if service in HOST_SERVICES:
                continue
            base = guest_base(service)
            if url.startswith(base + "/"):
                return host + url.removeprefix(base)
        return url

    def _doubt(self, error: Exception) -> None:
        """Record a failure of Heat itself: it makes a stack's failure no verdict on an image."""
        if not self._closing:
            self.events.doubt(error)

    def _on_deployments(self, server_id: str, configs: list[dict[str, object]]) -> None:
        expected.emit(
            self.events, server_id, expected_deployments.deployments(configs, self._labels.label)
        )

    def _on_event(self, stack: Any, event: Any) -> None:
        self._labels.learn(stack)
        self.events.add(
            StackResource(
                stack=stack.name,
                stack_id=stack.id,
                resource=event.resource_name,
                label=self._labels.label(stack.id, event.resource_name),
                type=event.resource_type,
                action=event.action,
                status=event.status,
                reason=event.reason or "",
            ),
            server=event.physical_resource_id or "" if "Server" in event.resource_type else "",
        )
        self.notify()

    # -- for clients --------------------

    @property
    def endpoints(self) -> dict[str, str]:
        """The URLs of the services on loopback, without paths."""
        return dict(self._host)

    @property
    def credentials(self) -> Credentials:
        """The login for a client on the host."""
        return self.identity.owner

    def heat(self) -> Any:
        """Return a python-heatclient (v1), over HTTP on loopback."""
        from heatclient import client
        from keystoneauth1 import session

        return client.Client(
            "1",
            session=session.Session(auth=self._login),
            service_type="orchestration",
            interface="public",
            region_name=REGION,
        )

    @cached_property
    def _login(self) -> Any:
        """The owner's login, whose token all clients share until it expires."""
        from keystoneauth1.identity import v3

        owner = self.identity.owner
        return v3.Password(
            auth_url=self._host["keystone"] + "/v3",
            user_id=owner.user_id,
            password=owner.password,
            project_id=owner.project_id,
        )

    def clouds_yaml(self) -> str:
        """Return a ``clouds.yaml`` with one cloud, ``hotplate``, for the ``openstack`` command."""
        owner = self.identity.owner
        return (
            "clouds:\n"
            "  hotplate:\n"
            f"    region_name: {REGION}\n"
            "    identity_api_version: 3\n"
            "    auth_type: password\n"
            "    auth:\n"
            f"      auth_url: {self._host['keystone']}/v3\n"
            f"      username: {owner.username}\n"
            f"      password: {owner.password}\n"
            f"      project_id: {owner.project_id}\n"
            f"      user_domain_id: {owner.domain}\n"
        )

    def metadata_tree(self, server_id: str) -> dict[str, bytes]:
        """Return the files of a server's config drive: path -> content."""
        return self.metadata.config_drive(server_id)

    def taken_for_granted(self) -> list[StoodIn]:
        """Return Neutron's resources that were created because templates name them."""
        return [StoodIn(kind, name) for kind, name in self.parts.granted.names()]

    def stand_ins(self, stack: str) -> list[StoodIn]:
        """Return the parts of a stack that were accepted but are not real, with nested stacks.

        :param stack: the stack's name or id.
        :return: resources of services that do not run here or are not enforced, the images, flavors
            and key pairs that its servers name, zones with a host, which an ordinary user may not
            choose, and servers that name no network.
        """
        from hotplate.cloud.heat import stand_ins

        client = self.heat()
        answer = client.stacks.get(stack, resolve_outputs=False)
        stood_in = stand_ins.not_there(self._engine.stood_in, networked=self._compute.networked)
        images = {image["id"] for image in self.parts.images.all()}
        # Resources, also those of nested stacks: Heat allows five levels by default.
        resources = client.resources.list(answer.id, nested_depth=10)
        present = [
            StoodIn(resource.resource_type, resource.resource_name)
            for resource in resources
            if resource.resource_type in stood_in
        ]
        if self._compute.networked:
            present += [part for each in resources for part in self._not_carried(each)]
        # The names that its servers use; a spec has the name of the root stack.
        for server in self.servers.all():
            spec = server.spec
            if spec.stack_name != answer.stack_name:
                continue
            for kind, name in (("image", spec.image), ("flavor", spec.flavor)):
                if name and name != UNDER_TEST and name not in images:
                    present.append(StoodIn(kind, name))
            if spec.key_name and not self.servers.has_keypair(spec.key_name):
                present.append(StoodIn("key pair", spec.key_name))
            if ":" in spec.availability_zone:
                present.append(StoodIn("availability zone with a host", spec.availability_zone))
            if spec.id in self._unconnected:
                present.append(StoodIn(UNCONNECTED, spec.name))
        return sorted(set(present))

    def _not_carried(self, resource: Any) -> list[StoodIn]:
        """Return the parts of a router or port that have no effect on packets."""
        kind, record_id = resource.resource_type, resource.physical_resource_id or ""
        records = self.networking.records
        parts = []
        if kind == "OS::Neutron::Router":
            router = records.get("routers", record_id)
            if router and router["external_gateway_info"]:
                parts.append("way out")
        if kind == "OS::Neutron::Port" and (port := records.get("ports", record_id)):
            parts += [name for name in ("allowed_address_pairs", "extra_dhcp_opts") if port[name]]
        return [StoodIn(f"{part} by {kind}", resource.resource_name) for part in parts]

    def copy_databases(self, directory: Path) -> None:
        """Write consistent copies of the databases to ``directory``, from which a cloud can start.

        Nothing may be in progress, because the two files are copied one after the other.
        """
        directory.mkdir(parents=True, exist_ok=True)
        for name in ("neighbours.db", "heat.db"):
            copy_database(self.directory / name, directory / name)

    def fault(
        self,
        *,
        endpoint: str,
        kind: str,
        status: int = 500,
        delay: float = 5.0,
        count: int = 0,
        seconds: float = 0.0,
        server: str = "",
        method: str = "",
        path: str = "",
    ) -> AbstractContextManager[Fault]:
        """Plant a fault for a ``with`` block; see :class:`~hotplate.cloud.http.faults.Fault`."""
        return self.faults.planted(
            Fault(endpoint, kind, status, delay, count, seconds, server, method, path)
        )
