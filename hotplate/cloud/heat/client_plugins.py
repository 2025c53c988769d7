"""Heat's ``cloud_backend`` plug-in: which client the engine uses for which service.

Glance, Nova, Swift, Zaqar and Heat are spoken to by their real clients over loopback; Neutron and
Cinder agree to everything.  All else is Heat's own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from heat.engine import clients
from heat.engine.clients import client_exception
from heat.engine.clients.os import cinder, glance, heat_plugin, nova, swift, zaqar
from heat.engine.clients.os import neutron as neutron_plugin
from heatclient import client as heat_client

from hotplate.cloud.http.addresses import guest_base
from hotplate.cloud.nova.network import GUEST_IP, NETWORK, mac_address

NAME = f"{__name__}.Backend"

_host: dict[str, str] = {}


def use(host: dict[str, str]) -> None:
    """Let every later client work on the endpoints ``host``."""
    global _host
    _host = host


class _Present:
    """A service that is there, whatever the catalogue says."""

    def does_endpoint_exist(self, service_type: str, service_name: str) -> bool:  # noqa: ARG002
        return True

    def has_extension(self, alias: str) -> bool:  # noqa: ARG002
        return True


class NovaPlugin(nova.NovaClientPlugin):  # type: ignore[misc]
    """Real novaclient over loopback."""

    # As [DEFAULT] max_nova_api_microversion: from 2.92 on Nova no longer makes key pairs itself,
    # and Heat refuses an OS::Nova::KeyPair without a public key.
    max_microversion = "2.91"

    def _create(self, version: str | None = None) -> Any:
        client = super()._create(version)
        create = client.servers.create

        def create_somewhere(*args: Any, nics: Any = None, **fields: Any) -> Any:
            # Heat 27 gives none for a server without networks, and from 2.37 on novaclient
            # refuses that; Nova's own word for its default is "auto".
            return create(*args, nics=nics or "auto", **fields)

        client.servers.create = create_somewhere
        return client

    def check_interface_attach(self, server_id: str, port_id: str | None) -> bool:  # noqa: ARG002
        """Accept it and do nothing: a server keeps the interface that it has."""
        return True

    def check_interface_detach(self, server_id: str, port_id: str) -> bool:  # noqa: ARG002
        """Accept it and do nothing: a server keeps the interface that it has."""
        return True


class GlancePlugin(glance.GlanceClientPlugin):  # type: ignore[misc]
    """Real glanceclient over loopback; a name that it does not have is the image under test."""

    def get_image(self, image_identifier: str) -> Any:
        try:
            return super().get_image(image_identifier)
        except client_exception.EntityMatchNotFound:
            # Every server boots the image under test, whatever its template calls it.
            return SimpleNamespace(
                id=image_identifier, name=image_identifier, status="active", min_ram=0, min_disk=0
            )


class _NeutronClient:
    """One network, one port for each server; everything that is asked for is accepted."""

    def list_ports(self, device_id: str = "", **_: object) -> dict[str, object]:
        if not device_id:
            return {"ports": []}
        return {"ports": [self.show_port(device_id)["port"]]}

    def show_port(self, port_id: str) -> dict[str, Any]:
        return {
            "port": {
                "id": port_id,
                "device_id": port_id,
                "network_id": NETWORK,
                "mac_address": mac_address(port_id),
                "fixed_ips": [{"ip_address": GUEST_IP, "subnet_id": NETWORK}],
            }
        }

    def create_port(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"port": {**self.show_port(NETWORK)["port"], **body["port"], "id": NETWORK}}

    def update_port(self, port_id: str, body: dict[str, object]) -> dict[str, object]:  # noqa: ARG002
        return self.show_port(port_id)

    def delete_port(self, port_id: str) -> None:
        pass

    def list_networks(self, **_: object) -> dict[str, object]:
        return {"networks": [self.show_network(NETWORK)["network"]]}

    def show_network(self, network_id: str) -> dict[str, object]:
        return {"network": {"id": network_id, "name": NETWORK, "subnets": [NETWORK]}}

    def show_subnet(self, subnet_id: str) -> dict[str, object]:
        return {
            "subnet": {
                "id": subnet_id,
                "name": NETWORK,
                "network_id": NETWORK,
                "cidr": "169.254.169.0/24",
                "ip_version": 4,
            }
        }

    def list_floatingips(self, **_: object) -> dict[str, object]:
        return {"floatingips": []}

    def update_floatingip(self, floatingip_id: str, body: dict[str, object]) -> None:
        pass

    def get_auto_allocated_topology(self, *_: object) -> dict[str, object]:
        return {"auto_allocated_topology": {"id": NETWORK}}


class NeutronPlugin(_Present, neutron_plugin.NeutronClientPlugin):  # type: ignore[misc]
    """Every network, subnet, port and security group exists."""

    def _create(self) -> _NeutronClient:
        return _NeutronClient()

    def find_resourceid_by_name_or_id(
        self,
        resource: str,  # noqa: ARG002
        name_or_id: str,
        cmd_resource: str | None = None,  # noqa: ARG002
    ) -> str:
        return name_or_id

    def get_secgroup_uuids(self, security_groups: list[str]) -> list[str]:
        return list(security_groups)


class CinderPlugin(_Present, cinder.CinderClientPlugin):  # type: ignore[misc]
    """Every volume exists."""

    def _create(self, version: str | None = None) -> Any:  # noqa: ARG002
        return SimpleNamespace()

    def get_volume(self, volume: str) -> Any:
        return SimpleNamespace(id=volume, status="in-use", attachments=[])


class SwiftPlugin(swift.SwiftClientPlugin):  # type: ignore[misc]
    """Real swiftclient over loopback; a URL for the guest names the guest's address."""

    def get_temp_url(
        self, container_name: str, obj_name: str, timeout: int | None = None, method: str = "PUT"
    ) -> str:
        url: str = super().get_temp_url(container_name, obj_name, timeout, method)
        return url.replace(_host["swift"], guest_base("swift"), 1)


class ZaqarPlugin(zaqar.ZaqarClientPlugin):  # type: ignore[misc]
    """Real zaqarclient over loopback."""

    def _create(self) -> Any:
        # Without a URL the client takes the public one, which is the guest's.
        return zaqar.zaqarclient.Client(
            url=self.url_for(service_type=self.MESSAGING),
            version=2,
            conf={"auth_opts": {"backend": "keystone", "options": {}}},
            session=self.context.keystone_session,
        )

    def url_for(self, **kwargs: object) -> str:
        return super().url_for(**{**kwargs, "interface": "internal"})  # type: ignore[no-any-return]


class HeatPlugin(heat_plugin.HeatClientPlugin):  # type: ignore[misc]
    """Real heatclient over loopback; a URL for the guest names the guest's address."""

    def _create(self) -> Any:
        return heat_client.Client(
            "1",
            endpoint_override=f"{_host['heat']}/v1/{self.context.project_id}",
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
        """Return the plug-in for a service, made once."""
        if name in _PLUGINS:
            if name not in self._client_plugins:
                self._client_plugins[name] = _PLUGINS[name](self.context)
            return self._client_plugins[name]
        return super().client_plugin(name)
