"""Heat's ``cloud_backend`` plug-in: the engine's client for each service.

The real clients talk to Glance, Nova, Neutron, Swift, Zaqar and Heat over loopback; the one for
Cinder accepts everything.  All others are Heat's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from heat.common import exception
from heat.engine import clients, function
from heat.engine.clients import client_exception
from heat.engine.clients.os import cinder, glance, heat_plugin, nova, swift, zaqar
from heat.engine.clients.os import neutron as neutron_plugin
from heatclient import client as heat_client
from neutronclient.common import exceptions as neutron_exceptions

from hotplate.cloud.http.addresses import guest_base
from hotplate.cloud.neutron.taken_for_granted import COLLECTIONS, TakenForGranted

NAME = f"{__name__}.Backend"


@dataclass(frozen=True)
class Used:
    """The services and callbacks that the clients use.

    :param host: service -> its URL.
    :param granted: creates resources of Neutron that templates assume.
    :param networked: True when servers have ports of Neutron.
    :param image_refusal: returns the reason why no server can boot an image, "" when one can.
    :param wait: waits for news, at most that many seconds; raises SystemExit when the engine ends.
    :param unconnected: called with the id of each server for which a template names no network.
    """

    host: Mapping[str, str] = field(default_factory=dict)
    granted: TakenForGranted | None = None
    networked: bool = False
    image_refusal: Callable[[str], str] = lambda _: ""
    wait: Callable[[float], None] = time.sleep
    unconnected: Callable[[str], object] = str


_use = Used()


def use(used: Used) -> None:
    """Set the services for all clients made later."""
    global _use
    _use = used


def _granted() -> TakenForGranted:
    if _use.granted is None:
        raise RuntimeError("no cloud is running")
    return _use.granted


class NovaPlugin(nova.NovaClientPlugin):  # type: ignore[misc]
    """Real novaclient over loopback."""

    # As [DEFAULT] max_nova_api_microversion: from 2.92 on Nova no longer makes key pairs itself,
    # and Heat refuses an OS::Nova::KeyPair without a public key.
    max_microversion = "2.91"

    def _create(self, version: str | None = None) -> Any:
        client = super()._create(version)
        create = client.servers.create

        def create_somewhere(*args: Any, nics: Any = None, **fields: Any) -> Any:
            # The look-up creates a group that the template assumes.
            groups = fields.get("security_groups")
            if groups:
                neutron = self.clients.client_plugin("neutron")
                fields["security_groups"] = neutron.get_secgroup_uuids(groups)
            if nics := self._fitting(nics):
                return create(*args, nics=nics, **fields)
            # Heat (19 to 27) passes no networks for a server without any, and novaclient refuses
            # that from 2.37 on. Nova's word for its default is "auto"; the verdict reports it.
            made = create(*args, nics=self._read_network(fields) or "auto", **fields)
            _use.unconnected(made.id)
            return made

        client.servers.create = create_somewhere
        return client

    def _read_network(self, fields: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return the network under whose name a template reads addresses of a server without one.

        :param fields: of the server's request; Heat names the stack in its hints.
        """
        # It imports oslo.messaging, which runs on eventlet unless the engine loads it first.
        from heat.engine import stack

        hints = fields.get("scheduler_hints") or {}
        for key in ("heat_stack_id", "heat_root_stack_id"):
            if stack_id := hints.get(key):
                loaded = stack.Stack.load(self.context, stack_id=stack_id)
                if network_id := next(filter(None, map(_granted().inner, _read_names(loaded))), ""):
                    return [{"net-id": network_id}]
        return []

    def _fitting(self, nics: Any) -> Any:
        """Return the networks of a server's request, after creating those that are assumed."""
        for nic in nics if isinstance(nics, list) else []:
            if nic.get("port-id"):
                nic["port-id"] = _granted().give("port", nic["port-id"])
            address = nic.get("v4-fixed-ip") or nic.get("v6-fixed-ip")
            if nic.get("net-id") and address:
                _granted().fit(nic["net-id"], [{"ip_address": address}])
        return nics

    def check_interface_attach(self, server_id: str, port_id: str | None) -> bool:
        """Return True at once when servers have no ports, since each keeps its one interface."""
        return not _use.networked or bool(super().check_interface_attach(server_id, port_id))

    def check_interface_detach(self, server_id: str, port_id: str) -> bool:
        """Wait until Nova's request to the guest to release an interface has ended.

        Heat's own wait ends after a minute, in which an emulated guest has not booted.
        When servers have no ports, each keeps its one interface and there is no wait.

        :raises heat.common.exception.InterfaceDetachFailed: when the guest keeps it.
        """
        while _use.networked:
            # Asked first: the detachment may end between the two calls.
            detaches = self._detaches(server_id)
            if self._is_detached(self, server_id, port_id):
                break
            if not detaches:
                raise exception.InterfaceDetachFailed(port=port_id, server=server_id)
            _use.wait(1.0)
        return True

    # Heat's own check without the retries of its tenacity decorator.
    _is_detached = staticmethod(nova.NovaClientPlugin.check_interface_detach.__wrapped__)

    def _detaches(self, server_id: str) -> bool:
        """Return True while Nova detaches an interface from a server."""
        actions = self.client().instance_action
        return any(
            event["finish_time"] is None
            for each in actions.list(server_id)
            if each.action == "detach_interface"
            for event in actions.get(server_id, each.request_id).events
        )


def _read_names(loaded: Any) -> Iterator[str]:
    """Yield the names of networks under which a stack's template reads addresses of its servers.

    As in ``get_attr: [server, networks, private, 0]``, of servers that are on no network by their
    properties.
    """
    document = loaded.t.t
    servers = {
        name
        for name, body in (document.get("resources") or {}).items()
        if body.get("type") == "OS::Nova::Server"
        and not (body.get("properties") or {}).get("networks")
    }
    for path in _get_attr_paths(document):
        if len(path) > 2 and path[0] in servers and path[1] in ("networks", "addresses"):
            name = function.resolve(loaded.t.parse(loaded.defn, path[2]))
            if isinstance(name, str) and name:
                yield name


def _get_attr_paths(snippet: Any) -> Iterator[list[Any]]:
    """Yield the arguments of every ``get_attr`` in a part of a template that are a list of texts.

    All but the resource and its attribute may be functions.
    """
    if isinstance(snippet, dict):
        path = snippet.get("get_attr")
        if isinstance(path, list) and all(isinstance(each, str) for each in path[:2]):
            yield path
    parts = snippet.values() if isinstance(snippet, dict) else snippet
    for part in parts if isinstance(snippet, dict | list) else ():
        yield from _get_attr_paths(part)


class _NoSuchImageError(client_exception.EntityMatchNotFound):  # type: ignore[misc]
    """No server can boot the image, for the reason in the message."""

    msg_fmt = "%(sentence)s"


class GlancePlugin(glance.GlanceClientPlugin):  # type: ignore[misc]
    """Real glanceclient over loopback; an unknown name stands for the image under test.

    When servers boot images by name, those that none can boot are refused.
    """

    def get_image(self, image_identifier: str) -> Any:
        try:
            image = super().get_image(image_identifier)
        except client_exception.EntityMatchNotFound:
            # Every server boots the image under test, whatever name its template uses.
            image = SimpleNamespace(
                id=image_identifier, name=image_identifier, status="active", min_ram=0, min_disk=0
            )
        if sentence := _use.image_refusal(image.id):
            raise _NoSuchImageError(sentence=sentence)
        return image


class _NetworkOfAny(str):
    """The network of a subnet created on look-up: equal to every other network created so.

    Heat compares the two before it creates a port on both; that port then brings them together.
    """

    __slots__ = ()
    # A class that defines __eq__ has no hash of its own otherwise.
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or _granted().made_network(str(other))

    def __ne__(self, other: object) -> bool:
        return not self == other


class NeutronPlugin(neutron_plugin.NeutronClientPlugin):  # type: ignore[misc]
    """Real neutronclient over loopback; look-ups create the resources that a template assumes."""

    def _create(self) -> Any:
        client = super()._create()
        # Taken before they are replaced, since the replacements call them.
        create_port, update_port = client.create_port, client.update_port

        def create(body: dict[str, Any]) -> Any:
            self._fit(str(body["port"].get("network_id")), body["port"])
            return create_port(body)

        def update(port_id: str, body: dict[str, Any]) -> Any:
            if body["port"].get("fixed_ips"):
                self._fit(client.show_port(port_id)["port"]["network_id"], body["port"])
            return update_port(port_id, body)

        client.create_port, client.update_port = create, update
        client.list_networks = _without_made_up(client)
        if not _use.networked:
            client.list_ports = _with_interfaces(client, self._interfaces)
            client.update_floatingip = _led_to_interface(client)
        return client

    def _interfaces(self, server_id: str) -> list[Any]:
        """Return a server's interfaces as Nova shows them; none for other ids."""
        nova = self.clients.client_plugin("nova")
        try:
            return list(nova.client().servers.interface_list(server_id))
        except Exception as error:
            # Raises every other error again.
            nova.ignore_not_found(error)
            return []

    def _fit(self, network_id: str, port: dict[str, Any]) -> None:
        fixed_ips = port.get("fixed_ips") or []
        for each in fixed_ips:
            if each.get("subnet_id"):
                each["subnet_id"] = _granted().give("subnet", each["subnet_id"])
        _granted().fit(network_id, fixed_ips)

    def find_resourceid_by_name_or_id(
        self, resource: str, name_or_id: str, cmd_resource: str | None = None
    ) -> str:
        try:
            return str(super().find_resourceid_by_name_or_id(resource, name_or_id, cmd_resource))
        except Exception as error:
            several = self.is_no_unique(error)
            if not several and not self.is_not_found(error):
                raise
            if resource not in COLLECTIONS:
                # Neutron here does not have these kinds, so there is nothing to look up.
                return name_or_id
            if several:
                present = _granted().present(resource, name_or_id)
                if not present:
                    raise
                return present
            return _granted().give(resource, name_or_id)

    def network_id_from_subnet_id(self, subnet_id: str) -> str:
        subnet_id = _granted().give("subnet", subnet_id)
        network_id = str(super().network_id_from_subnet_id(subnet_id))
        return _NetworkOfAny(network_id) if _granted().goes_with_any(subnet_id) else network_id

    def get_secgroup_uuids(self, security_groups: list[str]) -> list[str]:
        # Listed once, so that the project has its default group.
        self.client().list_security_groups(project_id=self.context.project_id)
        return [
            self.find_resourceid_by_name_or_id(self.RES_TYPE_SECURITY_GROUP, each)
            for each in security_groups
        ]


def _without_made_up(client: Any) -> Callable[..., Any]:
    """Return ``list_networks`` that omits networks created on look-up from the external ones.

    An AWS::EC2::EIP uses the external network, and Heat fails when there are several
    (``InternetGateway.get_external_network_id``).
    """
    list_networks = client.list_networks

    def listed(retrieve_all: bool = True, **filters: Any) -> Any:
        networks = list_networks(retrieve_all, **filters)
        if filters == {"router:external": True}:
            kept = [n for n in networks["networks"] if not _granted().made_network(n["id"])]
            networks["networks"] = kept
        return networks

    return listed


def _with_interfaces(client: Any, interfaces: Callable[[str], list[Any]]) -> Callable[..., Any]:
    """Return ``list_ports`` with the interfaces of servers that have no ports.

    :param interfaces: returns a server's interfaces as Nova shows them.
    """
    list_ports = client.list_ports

    def listed(retrieve_all: bool = True, **filters: Any) -> Any:
        ports = list_ports(retrieve_all, **filters)
        if ports["ports"] or "device_id" not in filters:
            return ports
        server_id = filters["device_id"]
        return {"ports": [shown(server_id, each) for each in interfaces(server_id)]}

    def shown(server_id: str, interface: Any) -> dict[str, Any]:
        subnets = client.show_network(interface.net_id)["network"]["subnets"]
        return {
            "id": interface.port_id,
            "device_id": server_id,
            "network_id": interface.net_id,
            "mac_address": interface.mac_addr,
            "fixed_ips": [
                {"ip_address": each["ip_address"], "subnet_id": subnets[0]}
                for each in interface.fixed_ips
            ],
        }

    return listed


def _led_to_interface(client: Any) -> Callable[..., Any]:
    """Return ``update_floatingip`` that leaves an address free if its server has no ports."""
    update_floatingip, show_port = client.update_floatingip, client.show_port

    def updated(floatingip: str, body: dict[str, Any]) -> Any:
        port_id = body["floatingip"].get("port_id")
        if port_id is None:
            return update_floatingip(floatingip, body)
        try:
            # Heat passes an empty id when the server is not on that network.
            show_port(port_id or "none")
        except neutron_exceptions.NotFound:
            return client.show_floatingip(floatingip)
        return update_floatingip(floatingip, body)

    return updated


class CinderPlugin(cinder.CinderClientPlugin):  # type: ignore[misc]
    """Cinder, in which every volume exists, and which exists itself, whatever the catalogue has."""

    # Otherwise Heat asks Cinder for it.
    max_microversion = "3.70"

    def does_endpoint_exist(self, service_type: str, service_name: str) -> bool:  # noqa: ARG002
        return True

    def has_extension(self, alias: str) -> bool:  # noqa: ARG002
        return True

    def _create(self, version: str | None = None) -> Any:  # noqa: ARG002
        # An AWS::EC2::Instance attaches its volumes by Nova, and waits for this state.
        return SimpleNamespace(volumes=SimpleNamespace(get=self.get_volume))

    def get_volume(self, volume: str) -> Any:
        return SimpleNamespace(id=volume, status="in-use", attachments=[])


class SwiftPlugin(swift.SwiftClientPlugin):  # type: ignore[misc]
    """Real swiftclient over loopback; URLs for guests contain the guest's address."""

    def get_temp_url(
        self, container_name: str, obj_name: str, timeout: int | None = None, method: str = "PUT"
    ) -> str:
        url: str = super().get_temp_url(container_name, obj_name, timeout, method)
        return url.replace(_use.host["swift"], guest_base("swift"), 1)


class ZaqarPlugin(zaqar.ZaqarClientPlugin):  # type: ignore[misc]
    """Real zaqarclient over loopback."""

    def _create(self) -> Any:
        # Without a URL the client uses the public one, which is for guests.
        return zaqar.zaqarclient.Client(
            url=self.url_for(service_type=self.MESSAGING),
            version=2,
            conf={"auth_opts": {"backend": "keystone", "options": {}}},
            session=self.context.keystone_session,
        )

    def url_for(self, **kwargs: object) -> str:
        return super().url_for(**{**kwargs, "interface": "internal"})  # type: ignore[no-any-return]


class HeatPlugin(heat_plugin.HeatClientPlugin):  # type: ignore[misc]
    """Real heatclient over loopback; URLs for guests contain the guest's address."""

    def _create(self) -> Any:
        # The catalogue refuses the region of a remote stack that does not exist here. Its endpoint
        # is the clients' own, whose threads may all wait for the engine that asks here.
        super().get_heat_url()
        return heat_client.Client(
            "1",
            endpoint_override=f"{_use.host['heat']}/v1/{self.context.project_id}",
            session=self.context.keystone_session,
        )

    def get_heat_url(self) -> str:
        return f"{guest_base('heat')}/v1/{self.context.project_id}"

    def get_heat_cfn_url(self) -> str:
        return guest_base("cfn") + "/v1"


_PLUGINS: dict[str, type[Any]] = {
    "nova": NovaPlugin,
    "glance": GlancePlugin,
    "neutron": NeutronPlugin,
    "cinder": CinderPlugin,
    "swift": SwiftPlugin,
    "zaqar": ZaqarPlugin,
    "heat": HeatPlugin,
}


class Backend(clients.OpenStackClients):  # type: ignore[misc]
    """The clients of one request context."""

    def client_plugin(self, name: str) -> Any:
        """Return the plug-in for a service, created once."""
        if name in _PLUGINS:
            if name not in self._client_plugins:
                self._client_plugins[name] = _PLUGINS[name](self.context)
            return self._client_plugins[name]
        return super().client_plugin(name)
