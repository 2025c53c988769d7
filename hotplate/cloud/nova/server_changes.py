"""Change a server's name, metadata, tags, interfaces and volumes over HTTP, and delete it.

Interfaces can be attached and detached on running and stopped servers; a server without ports keeps
its one interface.  There are no volumes: requests for them get Nova's answers, so that a template
which attaches volumes goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hotplate.cloud.http.rest import Answer, HttpError, Request
from hotplate.cloud.nova import policy, schemas
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.cloud.nova.instance_actions import begun, recorded
from hotplate.cloud.nova.interfaces import Wanted
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_create import check_metadata, kept
from hotplate.cloud.nova.server_records import STATES, ServerRecord, check_state
from hotplate.cloud.nova.servers_api import changed_view

#: The states in which tags can be changed: Nova looks at the machine, not at the task.
TAG_IN = [
    word
    for word, (machine, _, _) in STATES.items()
    if machine in ("active", "paused", "suspended", "stopped")
]


def _unlocked(request: Request, caller: Caller) -> ServerRecord:
    server = caller.server(request)
    policy.check_lock(server)
    return server


def _update(request: Request, caller: Caller) -> Answer:
    server = caller.server(request)
    asked = schemas.read(request, schemas.UPDATE)["server"]
    changes = kept(asked)
    if "name" in asked:
        caller.servers.change(server.spec.id, lambda spec: replace(spec, name=asked["name"]))
    if changes:
        caller.servers.note(server.spec.id, **changes)
    return Answer(body={"server": changed_view(server.spec.id, caller)})


def _delete(request: Request, caller: Caller) -> Answer:
    server_id = _unlocked(request, caller).spec.id
    with recorded(server_id, "delete", caller):
        caller.servers.delete(server_id)
    return Answer(204)


# -- metadata --------------------


def _metadata(request: Request, caller: Caller) -> Answer:
    return Answer(body={"metadata": caller.server(request).spec.metadata})


def _change_metadata(request: Request, caller: Caller) -> Answer:
    """Add metadata by POST, or replace all by PUT."""
    server, added = _unlocked(request, caller), request.method == "POST"
    asked = schemas.read(request, schemas.METADATA)["metadata"]
    return _keep(server, caller, lambda present: {**present, **asked} if added else asked)


def _keep(
    server: ServerRecord, caller: Caller, changed: Callable[[dict[str, str]], dict[str, str]]
) -> Answer:
    def change(spec: ServerSpec) -> ServerSpec:
        metadata = changed(spec.metadata)
        check_metadata(caller.servers, metadata)
        return replace(spec, metadata=metadata)

    return Answer(body={"metadata": caller.servers.change(server.spec.id, change).metadata})


def _item(request: Request, caller: Caller) -> Answer:
    server, key = caller.server(request), request.parts["key"]
    _check_has(server, key)
    return Answer(body={"meta": {key: server.spec.metadata[key]}})


def _set_item(request: Request, caller: Caller) -> Answer:
    server, key = _unlocked(request, caller), request.parts["key"]
    asked = schemas.read(request, schemas.METADATA_ITEM)["meta"]
    if key not in asked:
        raise HttpError(400, "Request body and URI mismatch")
    _keep(server, caller, lambda present: {**present, **asked})
    return Answer(body={"meta": asked})


def _delete_item(request: Request, caller: Caller) -> Answer:
    server, key = _unlocked(request, caller), request.parts["key"]
    _check_has(server, key)
    _keep(server, caller, lambda present: {each: present[each] for each in present if each != key})
    return Answer(204)


# -- tags --------------------


def _tagged(request: Request, caller: Caller) -> ServerRecord:
    # Tags came with 2.26.
    if not caller.since(26):
        raise HttpError(404, "The resource could not be found.")
    return caller.server(request)


def _taggable(request: Request, caller: Caller, action: str) -> ServerRecord:
    server = _tagged(request, caller)
    check_state(server.spec.id, caller.servers.status(server.spec.id)[0], action, TAG_IN)
    return server


def _tags(request: Request, caller: Caller) -> Answer:
    return Answer(body={"tags": _tagged(request, caller).notes.tags})


def _replace_tags(request: Request, caller: Caller) -> Answer:
    server = _taggable(request, caller, "update tags")
    tags = list(dict.fromkeys(schemas.read(request, schemas.TAG_LIST)["tags"]))
    caller.servers.note(server.spec.id, tags=tags)
    return Answer(body={"tags": tags})


def _delete_tags(request: Request, caller: Caller) -> Answer:
    server = _taggable(request, caller, "delete tags")
    caller.servers.note(server.spec.id, tags=[])
    return Answer(204)


def _has_tag(request: Request, caller: Caller) -> Answer:
    _check_tagged(_tagged(request, caller), request.parts["tag"])
    return Answer(204)


def _add_tag(request: Request, caller: Caller) -> Answer:
    server, tag = _taggable(request, caller, "update tag"), request.parts["tag"]
    if tag in server.notes.tags:
        return Answer(204)

    def tagged(present: list[str]) -> list[str]:
        tags = list(dict.fromkeys([*present, tag]))
        schemas.check({"tags": tags}, schemas.TAG_LIST)
        return tags

    caller.servers.note(server.spec.id, tags=tagged)
    where = f"{caller.base}/servers/{server.spec.id}/tags/{tag}"
    # A header cannot carry every tag.
    return Answer(201, headers=(("Location", where),) if tag.isascii() else ())


def _delete_tag(request: Request, caller: Caller) -> Answer:
    server, tag = _taggable(request, caller, "delete tag"), request.parts["tag"]
    _check_tagged(server, tag)
    caller.servers.note(
        server.spec.id, tags=lambda present: [each for each in present if each != tag]
    )
    return Answer(204)


# -- interfaces and volumes --------------------


def _interfaces(request: Request, caller: Caller) -> Answer:
    interfaces = caller.servers.interfaces(caller.server(request))
    # 2.70 added tags.
    shown = [each.attachment(tagged=caller.since(70)) for each in interfaces]
    return Answer(body={"interfaceAttachments": shown})


def _interface(request: Request, caller: Caller) -> Answer:
    server, port = caller.server(request), request.parts["port"]
    for each in caller.servers.interfaces(server):
        if each.port.id == port:
            shown = each.attachment(tagged=caller.since(70))
            return Answer(body={"interfaceAttachment": shown})
    raise HttpError(404, f"No interface with port {port} is attached to {server.spec.id}.")


def _attach(request: Request, caller: Caller) -> Answer:
    server = _unlocked(request, caller)
    asked = schemas.read(request, schemas.INTERFACE)["interfaceAttachment"]
    entry = _entry(asked)
    wanted = Wanted(server.spec.id, server.host_name, [entry])
    with recorded(server.spec.id, "attach_interface", caller):
        attached = caller.servers.attach(server.spec.id, wanted)
    shown = attached.attachment(tagged=caller.since(70))
    if not server.notes.has_ports and entry.get("port"):
        shown["port_id"] = entry["port"]
    return Answer(body={"interfaceAttachment": shown})


def _detach(request: Request, caller: Caller) -> Answer:
    server_id = _unlocked(request, caller).spec.id
    # end() is called when the guest, asked in the background, has released it.
    with begun(server_id, "detach_interface", caller) as end:
        caller.servers.detach(server_id, request.parts["port"], end)
    return Answer(202)


def _detach_volume(request: Request, caller: Caller) -> Answer:
    with recorded(_unlocked(request, caller).spec.id, "detach_volume", caller):
        return Answer(202)


def _volumes(request: Request, caller: Caller) -> Answer:
    caller.server(request)
    return Answer(body={"volumeAttachments": []})


def _volume(request: Request, caller: Caller) -> Answer:
    server_id, volume = caller.server(request).spec.id, request.parts["volume"]
    raise HttpError(404, f"{volume} is not attached to {server_id}.")


def _attach_volume(request: Request, caller: Caller) -> Answer:
    server_id = _unlocked(request, caller).spec.id
    asked = schemas.read(request, schemas.VOLUME)["volumeAttachment"]
    volume, device = asked["volumeId"], asked.get("device")
    shown = {"id": volume, "volumeId": volume, "serverId": server_id, "device": device}
    with recorded(server_id, "attach_volume", caller):
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


#: The routes of changes.
ROUTES = (
    ("PUT", "/servers/{id}", _update),
    ("DELETE", "/servers/{id}", _delete),
    ("GET", "/servers/{id}/metadata", _metadata),
    ("POST PUT", "/servers/{id}/metadata", _change_metadata),
    ("GET", "/servers/{id}/metadata/{key}", _item),
    ("PUT", "/servers/{id}/metadata/{key}", _set_item),
    ("DELETE", "/servers/{id}/metadata/{key}", _delete_item),
    ("GET", "/servers/{id}/tags", _tags),
    ("PUT", "/servers/{id}/tags", _replace_tags),
    ("DELETE", "/servers/{id}/tags", _delete_tags),
    ("GET", "/servers/{id}/tags/{tag}", _has_tag),
    ("PUT", "/servers/{id}/tags/{tag}", _add_tag),
    ("DELETE", "/servers/{id}/tags/{tag}", _delete_tag),
    ("GET", "/servers/{id}/os-interface", _interfaces),
    ("POST", "/servers/{id}/os-interface", _attach),
    ("GET", "/servers/{id}/os-interface/{port}", _interface),
    ("DELETE", "/servers/{id}/os-interface/{port}", _detach),
    ("GET", "/servers/{id}/os-volume_attachments", _volumes),
    ("POST", "/servers/{id}/os-volume_attachments", _attach_volume),
    ("GET", "/servers/{id}/os-volume_attachments/{volume}", _volume),
    ("DELETE", "/servers/{id}/os-volume_attachments/{volume}", _detach_volume),
)
