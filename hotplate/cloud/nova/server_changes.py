"""Change a server's name, metadata, tags, interfaces and volumes over HTTP, and delete it.

Interfaces can be attached and detached on running and stopped servers; a server without ports keeps
its one interface.  There are no volumes: requests for them get Nova's answers, so that a template
which attaches volumes goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes
from hotplate.cloud.nova import policy, schemas
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.cloud.nova.instance_actions import InstanceActions
from hotplate.cloud.nova.interfaces import Wanted
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_create import check_metadata, kept
from hotplate.cloud.nova.server_records import STATES, ServerRecord, check_state
from hotplate.cloud.nova.servers import Servers
from hotplate.cloud.nova.servers_api import changed_view

#: The states in which tags can be changed: Nova looks at the machine, not at the task.
TAG_IN = [
    word
    for word, (machine, _, _) in STATES.items()
    if machine in ("active", "paused", "suspended", "stopped")
]


class ChangesApi:
    """Requests that change a server, or delete it."""

    def __init__(self, servers: Servers, actions: InstanceActions) -> None:
        self._servers = servers
        self._recorded = actions.recorded
        self._begun = actions.begun

    def add_to(self, routes: Routes[Caller]) -> None:
        """Add the routes of changes."""
        routes.add("PUT", "/servers/{id}", self._update)
        routes.add("DELETE", "/servers/{id}", self._delete)
        routes.add("GET", "/servers/{id}/metadata", self._metadata)
        routes.add("POST PUT", "/servers/{id}/metadata", self._change_metadata)
        routes.add("GET", "/servers/{id}/metadata/{key}", self._item)
        routes.add("PUT", "/servers/{id}/metadata/{key}", self._set_item)
        routes.add("DELETE", "/servers/{id}/metadata/{key}", self._delete_item)
        routes.add("GET", "/servers/{id}/tags", self._tags)
        routes.add("PUT", "/servers/{id}/tags", self._replace_tags)
        routes.add("DELETE", "/servers/{id}/tags", self._delete_tags)
        routes.add("GET", "/servers/{id}/tags/{tag}", self._has_tag)
        routes.add("PUT", "/servers/{id}/tags/{tag}", self._add_tag)
        routes.add("DELETE", "/servers/{id}/tags/{tag}", self._delete_tag)
        routes.add("GET", "/servers/{id}/os-interface", self._interfaces)
        routes.add("POST", "/servers/{id}/os-interface", self._attach)
        routes.add("GET", "/servers/{id}/os-interface/{port}", self._interface)
        routes.add("DELETE", "/servers/{id}/os-interface/{port}", self._detach)
        routes.add("GET", "/servers/{id}/os-volume_attachments", self._volumes)
        routes.add("POST", "/servers/{id}/os-volume_attachments", self._attach_volume)
        routes.add("GET", "/servers/{id}/os-volume_attachments/{volume}", self._volume)
        routes.add("DELETE", "/servers/{id}/os-volume_attachments/{volume}", self._detach_volume)

    def _server(self, request: Request) -> ServerRecord:
        return self._servers.get(request.parts["id"])

    def _unlocked(self, request: Request) -> ServerRecord:
        server = self._server(request)
        policy.check_lock(server)
        return server

    def _update(self, request: Request, caller: Caller) -> Answer:
        server = self._server(request)
        asked = schemas.read(request, schemas.UPDATE)["server"]
        changes = kept(asked)
        if "name" in asked:
            self._servers.change(server.spec.id, lambda spec: replace(spec, name=asked["name"]))
        if changes:
            self._servers.note(server.spec.id, **changes)
        return Answer(body={"server": changed_view(self._servers, server.spec.id, caller)})

    def _delete(self, request: Request, caller: Caller) -> Answer:
        server_id = self._unlocked(request).spec.id
        with self._recorded(server_id, "delete", caller):
            self._servers.delete(server_id)
        return Answer(204)

    # -- metadata --------------------

    def _metadata(self, request: Request, _caller: Caller) -> Answer:
        return Answer(body={"metadata": self._server(request).spec.metadata})

    def _change_metadata(self, request: Request, _caller: Caller) -> Answer:
        """Add metadata by POST, or replace all by PUT."""
        server, added = self._unlocked(request), request.method == "POST"
        asked = schemas.read(request, schemas.METADATA)["metadata"]
        return self._keep(server, lambda present: {**present, **asked} if added else asked)

    def _keep(
        self, server: ServerRecord, changed: Callable[[dict[str, str]], dict[str, str]]
    ) -> Answer:
        def change(spec: ServerSpec) -> ServerSpec:
            metadata = changed(spec.metadata)
            check_metadata(self._servers, metadata)
            return replace(spec, metadata=metadata)

        return Answer(body={"metadata": self._servers.change(server.spec.id, change).metadata})

    def _item(self, request: Request, _caller: Caller) -> Answer:
        server, key = self._server(request), request.parts["key"]
        _check_has(server, key)
        return Answer(body={"meta": {key: server.spec.metadata[key]}})

    def _set_item(self, request: Request, _caller: Caller) -> Answer:
        server, key = self._unlocked(request), request.parts["key"]
        asked = schemas.read(request, schemas.METADATA_ITEM)["meta"]
        if key not in asked:
            raise HttpError(400, "Request body and URI mismatch")
        self._keep(server, lambda present: {**present, **asked})
        return Answer(body={"meta": asked})

    def _delete_item(self, request: Request, _caller: Caller) -> Answer:
        server, key = self._unlocked(request), request.parts["key"]
        _check_has(server, key)
        self._keep(server, lambda present: {each: present[each] for each in present if each != key})
        return Answer(204)

    # -- tags --------------------

    def _tagged(self, request: Request, caller: Caller) -> ServerRecord:
        # Tags came with 2.26.
        if not caller.since(26):
            raise HttpError(404, "The resource could not be found.")
        return self._server(request)

    def _taggable(self, request: Request, caller: Caller, action: str) -> ServerRecord:
        server = self._tagged(request, caller)
        check_state(server.spec.id, self._servers.status(server.spec.id)[0], action, TAG_IN)
        return server

    def _tags(self, request: Request, caller: Caller) -> Answer:
        return Answer(body={"tags": self._tagged(request, caller).notes.tags})

    def _replace_tags(self, request: Request, caller: Caller) -> Answer:
        server = self._taggable(request, caller, "update tags")
        tags = list(dict.fromkeys(schemas.read(request, schemas.TAG_LIST)["tags"]))
        self._servers.note(server.spec.id, tags=tags)
        return Answer(body={"tags": tags})

    def _delete_tags(self, request: Request, caller: Caller) -> Answer:
        server = self._taggable(request, caller, "delete tags")
        self._servers.note(server.spec.id, tags=[])
        return Answer(204)

    def _has_tag(self, request: Request, caller: Caller) -> Answer:
        _check_tagged(self._tagged(request, caller), request.parts["tag"])
        return Answer(204)

    def _add_tag(self, request: Request, caller: Caller) -> Answer:
        server, tag = self._taggable(request, caller, "update tag"), request.parts["tag"]
        if tag in server.notes.tags:
            return Answer(204)

        def tagged(present: list[str]) -> list[str]:
            tags = list(dict.fromkeys([*present, tag]))
            schemas.check({"tags": tags}, schemas.TAG_LIST)
            return tags

        self._servers.note(server.spec.id, tags=tagged)
        where = f"{caller.base}/servers/{server.spec.id}/tags/{tag}"
        # A header cannot carry every tag.
        return Answer(201, headers=(("Location", where),) if tag.isascii() else ())

    def _delete_tag(self, request: Request, caller: Caller) -> Answer:
        server, tag = self._taggable(request, caller, "delete tag"), request.parts["tag"]
        _check_tagged(server, tag)
        self._servers.note(
            server.spec.id, tags=lambda present: [each for each in present if each != tag]
        )
        return Answer(204)

    # -- interfaces and volumes --------------------

    def _interfaces(self, request: Request, caller: Caller) -> Answer:
        interfaces = self._servers.interfaces(self._server(request))
        # 2.70 added tags.
        shown = [each.attachment(tagged=caller.since(70)) for each in interfaces]
        return Answer(body={"interfaceAttachments": shown})

    def _interface(self, request: Request, caller: Caller) -> Answer:
        server, port = self._server(request), request.parts["port"]
        for each in self._servers.interfaces(server):
            if each.port.id == port:
                shown = each.attachment(tagged=caller.since(70))
                return Answer(body={"interfaceAttachment": shown})
        raise HttpError(404, f"No interface with port {port} is attached to {server.spec.id}.")

    def _attach(self, request: Request, caller: Caller) -> Answer:
        server = self._unlocked(request)
        asked = schemas.read(request, schemas.INTERFACE)["interfaceAttachment"]
        entry = _entry(asked)
        wanted = Wanted(server.spec.id, server.host_name, [entry])
        with self._recorded(server.spec.id, "attach_interface", caller):
            attached = self._servers.attach(server.spec.id, wanted)
        shown = attached.attachment(tagged=caller.since(70))
        if not server.has_ports and entry.get("port"):
            shown["port_id"] = entry["port"]
        return Answer(body={"interfaceAttachment": shown})

    def _detach(self, request: Request, caller: Caller) -> Answer:
        server_id = self._unlocked(request).spec.id
        # end() is called when the guest, asked in the background, has released it.
        with self._begun(server_id, "detach_interface", caller) as end:
            self._servers.detach(server_id, request.parts["port"], end)
        return Answer(202)

    def _detach_volume(self, request: Request, caller: Caller) -> Answer:
        with self._recorded(self._unlocked(request).spec.id, "detach_volume", caller):
            return Answer(202)

    def _volumes(self, request: Request, _caller: Caller) -> Answer:
        self._server(request)
        return Answer(body={"volumeAttachments": []})

    def _volume(self, request: Request, _caller: Caller) -> Answer:
        server_id, volume = self._server(request).spec.id, request.parts["volume"]
        raise HttpError(404, f"{volume} is not attached to {server_id}.")

    def _attach_volume(self, request: Request, caller: Caller) -> Answer:
        server_id = self._unlocked(request).spec.id
        asked = schemas.read(request, schemas.VOLUME)["volumeAttachment"]
        volume, device = asked["volumeId"], asked.get("device")
        shown = {"id": volume, "volumeId": volume, "serverId": server_id, "device": device}
        with self._recorded(server_id, "attach_volume", caller):
            return Answer(body={"volumeAttachment": shown})


def _check_has(server: ServerRecord, key: str) -> None:
    if key not in server.spec.metadata:
        raise HttpError(404, "Metadata item was not found")


def _check_tagged(server: ServerRecord, tag: str) -> None:
    if tag not in server.notes.tags:
        raise HttpError(404, f"Server {server.spec.id} has no tag '{tag}'")


def _entry(asked: dict[str, Any]) -> dict[str, Any]:
    """Return a requested interface in the form of an entry of a new server's networks.

    :raises HttpError: 400, for a network beside a port, or an address without a network.
    """
    network, port, fixed_ips = (asked.get(name) for name in ("net_id", "port_id", "fixed_ips"))
    if port and network:
        raise HttpError(400, "Must not input both network_id and port_id")
    if fixed_ips and not network:
        raise HttpError(400, "Must input network_id when request IP address")
    address = fixed_ips[0]["ip_address"] if fixed_ips else None
    entry = {"uuid": network, "port": port, "fixed_ip": address}
    return {name: value for name, value in entry.items() if value}
