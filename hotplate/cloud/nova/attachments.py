"""Attach interfaces and volumes to servers.

Interfaces can be attached and detached on running and stopped servers; a server without ports keeps
its one interface.  There are no volumes: requests for them get Nova's answers, so that a template
which attaches volumes goes on.
"""

from __future__ import annotations

from typing import Any

from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes
from hotplate.cloud.nova import schemas
from hotplate.cloud.nova.instance_actions import InstanceActions
from hotplate.cloud.nova.interfaces import Wanted
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_records import ServerRecord
from hotplate.cloud.nova.servers import Servers
from hotplate.cloud.nova.servers_api import find


class AttachmentsApi:
    """Resources below ``/servers/{id}/os-interface`` and ``os-volume_attachments``."""

    def __init__(self, servers: Servers, actions: InstanceActions) -> None:
        self._servers = servers
        self._recorded = actions.recorded
        self._begun = actions.begun

    def add_to(self, routes: Routes[Caller]) -> None:
        """Add the routes of attachments."""
        routes.add("GET", "/servers/{id}/os-interface", self._interfaces)
        routes.add("POST", "/servers/{id}/os-interface", self._attach)
        routes.add("GET", "/servers/{id}/os-interface/{port}", self._interface)
        routes.add("DELETE", "/servers/{id}/os-interface/{port}", self._detach)
        routes.add("GET", "/servers/{id}/os-volume_attachments", self._volumes)
        routes.add("POST", "/servers/{id}/os-volume_attachments", self._attach_volume)
        routes.add("GET", "/servers/{id}/os-volume_attachments/{volume}", self._volume)
        routes.add("DELETE", "/servers/{id}/os-volume_attachments/{volume}", self._detach_volume)

    def _server(self, request: Request) -> ServerRecord:
        return find(self._servers, request.part("id"))

    def _interfaces(self, request: Request, _caller: Caller) -> Answer:
        interfaces = self._servers.interfaces(self._server(request))
        return Answer(body={"interfaceAttachments": [each.attachment() for each in interfaces]})

    def _interface(self, request: Request, _caller: Caller) -> Answer:
        server, port = self._server(request), request.part("port")
        for each in self._servers.interfaces(server):
            if each.port.id == port:
                return Answer(body={"interfaceAttachment": each.attachment()})
        raise HttpError(404, f"No interface with port {port} is attached to {server.spec.id}.")

    def _attach(self, request: Request, caller: Caller) -> Answer:
        server = self._server(request)
        asked = schemas.read(request, schemas.INTERFACE)["interfaceAttachment"]
        entry = _entry(asked)
        wanted = Wanted(server.spec.id, server.host_name, [entry])
        with self._recorded(server.spec.id, "attach_interface", caller):
            shown = self._servers.attach(server.spec.id, wanted).attachment()
        if not server.has_ports and entry.get("port"):
            shown["port_id"] = entry["port"]
        return Answer(body={"interfaceAttachment": shown})

    def _detach(self, request: Request, caller: Caller) -> Answer:
        server_id = self._server(request).spec.id
        with self._begun(server_id, "detach_interface", caller) as end:
            self._servers.detach(server_id, request.part("port"), end)
        return Answer(202)

    def _detach_volume(self, request: Request, caller: Caller) -> Answer:
        with self._recorded(self._server(request).spec.id, "detach_volume", caller):
            return Answer(202)

    def _volumes(self, request: Request, _caller: Caller) -> Answer:
        self._server(request)
        return Answer(body={"volumeAttachments": []})

    def _volume(self, request: Request, _caller: Caller) -> Answer:
        server_id, volume = self._server(request).spec.id, request.part("volume")
        raise HttpError(404, f"{volume} is not attached to {server_id}.")

    def _attach_volume(self, request: Request, caller: Caller) -> Answer:
        server_id = self._server(request).spec.id
        asked = schemas.read(request, schemas.VOLUME)["volumeAttachment"]
        volume, device = asked["volumeId"], asked.get("device")
        shown = {"id": volume, "volumeId": volume, "serverId": server_id, "device": device}
        with self._recorded(server_id, "attach_volume", caller):
            return Answer(body={"volumeAttachment": shown})


def _entry(asked: dict[str, Any]) -> dict[str, Any]:
    """Return a requested interface in the form of an entry of a new server's networks.

    :raises HttpError: 400, for a network beside a port, or an address without a network.
    """
    fixed_ips = asked.get("fixed_ips") or []
    if asked.get("port_id") and asked.get("net_id"):
        raise HttpError(400, "Must not input both network_id and port_id")
    if fixed_ips and not asked.get("net_id"):
        raise HttpError(400, "Must input network_id when request IP address")
    entry = {"uuid": asked.get("net_id"), "port": asked.get("port_id")}
    if isinstance(fixed_ips, list) and fixed_ips and isinstance(fixed_ips[0], dict):
        entry["fixed_ip"] = fixed_ips[0].get("ip_address")
    return {name: value for name, value in entry.items() if value}
