"""Change a server's name, metadata and tags over HTTP, and delete it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes
from hotplate.cloud.nova import schemas, server_views
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.cloud.nova.instance_actions import InstanceActions
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_create import check_metadata, kept
from hotplate.cloud.nova.server_records import ServerRecord
from hotplate.cloud.nova.servers import Servers
from hotplate.cloud.nova.servers_api import find


class ChangesApi:
    """Requests that change a server without its machine, or delete it."""

    def __init__(self, servers: Servers, actions: InstanceActions) -> None:
        self._servers = servers
        self._actions = actions

    def add_to(self, routes: Routes[Caller]) -> None:
        """Add the routes of changes."""
        routes.add("PUT", "/servers/{id}", self._update)
        routes.add("DELETE", "/servers/{id}", self._delete)
        routes.add("GET", "/servers/{id}/metadata", self._metadata)
        routes.add("POST", "/servers/{id}/metadata", self._add_metadata)
        routes.add("PUT", "/servers/{id}/metadata", self._replace_metadata)
        routes.add("GET", "/servers/{id}/metadata/{key}", self._item)
        routes.add("PUT", "/servers/{id}/metadata/{key}", self._set_item)
        routes.add("DELETE", "/servers/{id}/metadata/{key}", self._delete_item)
        routes.add("GET", "/servers/{id}/tags", self._tags)
        routes.add("PUT", "/servers/{id}/tags", self._replace_tags)
        routes.add("DELETE", "/servers/{id}/tags", self._delete_tags)
        routes.add("GET", "/servers/{id}/tags/{tag}", self._has_tag)
        routes.add("PUT", "/servers/{id}/tags/{tag}", self._add_tag)
        routes.add("DELETE", "/servers/{id}/tags/{tag}", self._delete_tag)

    def _server(self, request: Request) -> ServerRecord:
        return find(self._servers, request.part("id"))

    def _update(self, request: Request, caller: Caller) -> Answer:
        server = self._server(request)
        asked = schemas.read(request, schemas.UPDATE)["server"]
        if "name" in asked:
            self._servers.change(server.spec.id, lambda spec: replace(spec, name=asked["name"]))
        changes = kept(asked)
        if "description" in asked:
            changes["description"] = asked["description"] or ""
        if changes:
            self._servers.note(server.spec.id, **changes)
        status = self._servers.status(server.spec.id)
        changed = self._server(request)
        interfaces = self._servers.interfaces(changed)
        shown = server_views.full(changed, status, caller, interfaces=interfaces)
        return Answer(body={"server": shown})

    def _delete(self, request: Request, caller: Caller) -> Answer:
        server_id = self._server(request).spec.id
        with self._actions.recorded(server_id, "delete", caller):
            self._servers.delete(server_id)
        return Answer(204)

    # -- metadata --------------------

    def _metadata(self, request: Request, _caller: Caller) -> Answer:
        return Answer(body={"metadata": self._server(request).spec.metadata})

    def _add_metadata(self, request: Request, _caller: Caller) -> Answer:
        server = self._server(request)
        asked = schemas.read(request, schemas.METADATA)["metadata"]
        return self._keep(server, lambda present: {**present, **asked})

    def _replace_metadata(self, request: Request, _caller: Caller) -> Answer:
        server = self._server(request)
        asked = schemas.read(request, schemas.METADATA)["metadata"]
        return self._keep(server, lambda _: asked)

    def _keep(
        self, server: ServerRecord, changed: Callable[[dict[str, str]], dict[str, str]]
    ) -> Answer:
        def change(spec: ServerSpec) -> ServerSpec:
            metadata = changed(spec.metadata)
            check_metadata(metadata)
            return replace(spec, metadata=metadata)

        return Answer(body={"metadata": self._servers.change(server.spec.id, change).metadata})

    def _item(self, request: Request, _caller: Caller) -> Answer:
        server, key = self._server(request), request.part("key")
        _check_has(server, key)
        return Answer(body={"meta": {key: server.spec.metadata[key]}})

    def _set_item(self, request: Request, _caller: Caller) -> Answer:
        server, key = self._server(request), request.part("key")
        asked = schemas.read(request, schemas.METADATA_ITEM)["meta"]
        if key not in asked:
            raise HttpError(400, "Request body and URI mismatch")
        self._keep(server, lambda present: {**present, **asked})
        return Answer(body={"meta": asked})

    def _delete_item(self, request: Request, _caller: Caller) -> Answer:
        server, key = self._server(request), request.part("key")
        _check_has(server, key)
        self._keep(server, lambda present: {each: present[each] for each in present if each != key})
        return Answer(204)

    # -- tags --------------------

    def _tagged(self, request: Request, caller: Caller) -> ServerRecord:
        if not caller.since(26):
            raise HttpError(404, "The resource could not be found.")
        return self._server(request)

    def _tags(self, request: Request, caller: Caller) -> Answer:
        return Answer(body={"tags": self._tagged(request, caller).notes.tags})

    def _replace_tags(self, request: Request, caller: Caller) -> Answer:
        server = self._tagged(request, caller)
        tags = list(dict.fromkeys(schemas.read(request, schemas.TAG_LIST)["tags"]))
        self._servers.note(server.spec.id, tags=tags)
        return Answer(body={"tags": tags})

    def _delete_tags(self, request: Request, caller: Caller) -> Answer:
        self._servers.note(self._tagged(request, caller).spec.id, tags=[])
        return Answer(204)

    def _has_tag(self, request: Request, caller: Caller) -> Answer:
        _check_tagged(self._tagged(request, caller), request.part("tag"))
        return Answer(204)

    def _add_tag(self, request: Request, caller: Caller) -> Answer:
        server, tag = self._tagged(request, caller), request.part("tag")
        if tag in server.notes.tags:
            return Answer(204)

        def tagged(present: list[str]) -> list[str]:
            tags = list(dict.fromkeys([*present, tag]))
            schemas.check({"tags": tags}, schemas.TAG_LIST)
            return tags

        self._servers.note(server.spec.id, tags=tagged)
        where = f"{caller.base}/servers/{server.spec.id}/tags/{tag}"
        return Answer(201, headers=(("Location", where),) if tag.isascii() else ())

    def _delete_tag(self, request: Request, caller: Caller) -> Answer:
        server, tag = self._tagged(request, caller), request.part("tag")
        _check_tagged(server, tag)
        self._servers.note(
            server.spec.id, tags=lambda present: [each for each in present if each != tag]
        )
        return Answer(204)


def _check_has(server: ServerRecord, key: str) -> None:
    if key not in server.spec.metadata:
        raise HttpError(404, "Metadata item was not found")


def _check_tagged(server: ServerRecord, tag: Any) -> None:
    if tag not in server.notes.tags:
        raise HttpError(404, f"Server {server.spec.id} has no tag '{tag}'")
