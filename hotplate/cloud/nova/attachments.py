"""Interfaces and volumes that are attached to a server: accepted, and not really there.

A server has one interface and keeps it; there are no volumes.  What Heat asks for is answered as
Nova does, so that a template which attaches some goes on.
"""

from __future__ import annotations

from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes
from hotplate.cloud.nova import schemas
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.network import GUEST_IP, NETWORK, mac_address
from hotplate.cloud.nova.servers import ServerRecord, Servers
from hotplate.cloud.nova.servers_api import find


class AttachmentsApi:
    """What is below ``/servers/{id}/os-interface`` and ``os-volume_attachments``."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def add_to(self, routes: Routes[Caller]) -> None:
        """Answer for what is attached."""
        routes.add("GET", "/servers/{id}/os-interface", self._interfaces)
        routes.add("POST", "/servers/{id}/os-interface", self._attach)
        routes.add("GET", "/servers/{id}/os-interface/{port}", self._interface)
        routes.add("DELETE", "/servers/{id}/os-interface/{port}", self._detach)
        routes.add("GET", "/servers/{id}/os-volume_attachments", self._volumes)
        routes.add("POST", "/servers/{id}/os-volume_attachments", self._attach_volume)
        routes.add("GET", "/servers/{id}/os-volume_attachments/{volume}", self._volume)
        routes.add("DELETE", "/servers/{id}/os-volume_attachments/{volume}", self._detach)

    def _server(self, request: Request) -> ServerRecord:
        return find(self._servers, request.part("id"))

    def _interfaces(self, request: Request, _caller: Caller) -> Answer:
        interface = _shown(self._server(request).spec.id)
        return Answer(body={"interfaceAttachments": [interface]})

    def _interface(self, request: Request, _caller: Caller) -> Answer:
        server_id, port = self._server(request).spec.id, request.part("port")
        if port != server_id:
            raise HttpError(404, f"No interface with port {port} is attached to {server_id}.")
        return Answer(body={"interfaceAttachment": _shown(server_id)})

    def _attach(self, request: Request, _caller: Caller) -> Answer:
        server_id = self._server(request).spec.id
        asked = schemas.read(request, schemas.INTERFACE)["interfaceAttachment"]
        shown = _shown(server_id)
        return Answer(
            body={"interfaceAttachment": {**shown, "port_id": asked.get("port_id") or server_id}}
        )

    def _detach(self, request: Request, _caller: Caller) -> Answer:
        self._server(request)
        return Answer(202)

    def _volumes(self, request: Request, _caller: Caller) -> Answer:
        self._server(request)
        return Answer(body={"volumeAttachments": []})

    def _volume(self, request: Request, _caller: Caller) -> Answer:
        server_id, volume = self._server(request).spec.id, request.part("volume")
        raise HttpError(404, f"{volume} is not attached to {server_id}.")

    def _attach_volume(self, request: Request, _caller: Caller) -> Answer:
        server_id = self._server(request).spec.id
        asked = schemas.read(request, schemas.VOLUME)["volumeAttachment"]
        volume, device = asked["volumeId"], asked.get("device")
        shown = {"id": volume, "volumeId": volume, "serverId": server_id, "device": device}
        return Answer(body={"volumeAttachment": shown})


def _shown(server_id: str) -> dict[str, object]:
    return {
        "port_id": server_id,
        "net_id": NETWORK,
        "mac_addr": mac_address(server_id),
        "port_state": "ACTIVE",
        "fixed_ips": [{"ip_address": GUEST_IP, "subnet_id": NETWORK}],
    }
