"""Create servers over HTTP, one or several per request."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import secrets
import uuid
from dataclasses import asdict, replace
from typing import Any

from hotplate.cloud.http.rest import Answer, HttpError, Request
from hotplate.cloud.nova import schemas
from hotplate.cloud.nova.capacity import check_servers, flavor
from hotplate.cloud.nova.compute import ServerSpec
from hotplate.cloud.nova.instance_actions import recorded
from hotplate.cloud.nova.interfaces import Wanted, host_name
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_records import HOST, Notes, ServerRecord
from hotplate.cloud.nova.servers import Servers


def _create(request: Request, caller: Caller) -> Answer:
    # Since 2.37 a request must have networks.
    schema = schemas.CREATE_SINCE_37 if caller.since(37) else schemas.CREATE
    body = schemas.read(request, schema)
    asked = body["server"]
    # Nova accepts both names.
    hints = body.get("os:scheduler_hints") or body.get("OS-SCH-HNT:scheduler_hints") or {}
    # These checks come before the first server is made.
    least, count = _count(asked)
    check_supported(asked)
    check_metadata(caller.servers, asked.get("metadata") or {})
    count = check_servers(caller.servers, flavor(str(asked["flavorRef"])), least, count)
    notes = _notes(asked, hints, caller)
    networks = _networks(asked, count)
    made = []
    for number in range(1, count + 1):
        spec = _spec(asked, hints, _name(asked["name"], number, count), caller.servers)
        groups = tuple(str(each.get("name")) for each in asked.get("security_groups") or [])
        notes = replace(notes, host_name=asked.get("hostname") or host_name(spec.name))
        wanted = Wanted(spec.id, notes.host_name, networks, groups)
        with (
            recorded(spec.id, "create", caller),
            caller.servers.ports_for(wanted) as ports,
        ):
            if ports is None:
                requested = [asdict(each) for each in caller.servers.requested_networks(wanted)]
                notes = replace(notes, requested_networks=requested)
            else:
                notes, spec = replace(notes, has_ports=True), replace(spec, ports=ports)
            made.append(caller.servers.boot(spec, notes))
    return _answer(asked, made[0], caller)


def _answer(asked: dict[str, Any], server: ServerRecord, caller: Caller) -> Answer:
    if str(asked.get("return_reservation_id", "")).lower() in ("true", "1"):
        return Answer(202, {"reservation_id": f"r-{server.number:08x}"})
    path = f"/servers/{server.spec.id}"
    shown = {
        "id": server.spec.id,
        "links": caller.link(path),
        "OS-DCF:diskConfig": asked.get("OS-DCF:diskConfig", "MANUAL"),
        "security_groups": asked.get("security_groups") or [{"name": "default"}],
        "adminPass": asked.get("adminPass") or secrets.token_urlsafe(9),
    }
    return Answer(202, {"server": shown}, (("Location", caller.base + path),))


def _notes(asked: dict[str, Any], hints: dict[str, Any], caller: Caller) -> Notes:
    group = str(first(hints.get("group")) or "")
    if group and not caller.store.first("hotplate_server_group", id=group):
        raise HttpError(400, f"Instance group {group} could not be found.")
    return Notes(
        tags=list(dict.fromkeys(asked.get("tags") or [])),
        user=caller.grant.user.id,
        group=group,
        **kept(asked),
    )


def _spec(asked: dict[str, Any], hints: dict[str, Any], name: str, servers: Servers) -> ServerSpec:
    key_name = asked.get("key_name") or ""
    return ServerSpec(
        id=str(uuid.uuid4()),
        name=name,
        user_data=user_data(asked.get("user_data")),
        image=bootable(servers, _image(asked)),
        flavor=flavor(str(asked["flavorRef"])).name,
        key_name=key_name,
        public_keys=public_keys(servers, key_name),
        metadata=dict(asked.get("metadata") or {}),
        config_drive=str(asked.get("config_drive")).lower() in ("true", "1"),
        # The name that a user gave: that of the root stack, not of a nested one.
        stack_name=str(first(hints.get("heat_path_in_stack")) or ""),
        resource_name=str(first(hints.get("heat_resource_name")) or ""),
        availability_zone=asked.get("availability_zone") or "nova",
    )


def kept(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the notes to store from a request that creates, changes or rebuilds a server.

    :return: fields of :class:`~hotplate.cloud.nova.server_records.Notes`.
    :raises HttpError: 400 for a bad address.
    """
    fields = {
        "description": "description",
        "hostname": "host_name",
        "accessIPv4": "access_ipv4",
        "accessIPv6": "access_ipv6",
        "OS-DCF:diskConfig": "disk_config",
    }
    return {
        field: _address(name, asked[name]) if name.startswith("accessIP") else asked[name] or ""
        for name, field in fields.items()
        if name in asked
    }


def _address(name: str, text: str) -> str:
    """Return an access address in the form in which Nova stores it (RFC 5952).

    :raises HttpError: 400, when it is none of that version.
    """
    version = int(name[-1])
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        address = None
    if address is None or address.version != version:
        raise HttpError(
            400,
            f"Invalid input for field/attribute {name}. Value: {text}. '{text}' is not a "
            f"'ipv{version}'",
        )
    return str(address)


def check_supported(asked: dict[str, Any]) -> None:
    """Refuse properties that would have no effect.

    :raises HttpError: 400.
    """
    if asked.get("personality"):
        raise HttpError(400, "This cloud puts no files into a server (personality): use user_data.")
    if asked.get("trusted_image_certificates"):
        raise HttpError(400, "This cloud checks no image by trusted_image_certificates.")
    for name in ("host", "hypervisor_hostname"):
        if asked.get(name, HOST) != HOST:
            raise HttpError(400, f"Compute host {asked[name]} could not be found.")


def user_data(text: str | None) -> bytes:
    """Decode base64 user data.

    :raises HttpError: 400, when it is not base64.
    """
    try:
        # base64.encodebytes() wraps lines, and validate=True refuses line ends.
        return base64.b64decode((text or "").replace("\n", ""), validate=True)
    except (binascii.Error, ValueError):
        raise HttpError(
            400,
            "Invalid input for field/attribute user_data: it is not base64.",
        ) from None


def public_keys(servers: Servers, key_name: str) -> dict[str, str]:
    """Return the public keys for a server with a key pair of that name."""
    if not key_name:
        return {}
    public_key = servers.keypair(key_name).public_key
    return {key_name: public_key} if public_key else {}


def check_metadata(servers: Servers, metadata: dict[str, str]) -> None:
    """Refuse more metadata than the limit for a server.

    :raises HttpError: 403.
    """
    if len(metadata) > (most := servers.quotas.metadata_items):
        raise HttpError(403, f"Maximum number of metadata items exceeds {most}")


def first(value: Any) -> Any:
    """Return the first item of a list, or the value itself when it is not a list."""
    return value[0] if isinstance(value, list) and value else value


def bootable(servers: Servers, image: str) -> str:
    """Return the image after a check that it can be booted.

    :raises HttpError: 400, when it cannot be booted.
    """
    if refusal := servers.image_refusal(image):
        raise HttpError(400, refusal)
    return image


def _image(asked: dict[str, Any]) -> str:
    """Return the image, given by name or as the source of the first disk."""
    if asked.get("imageRef"):
        return str(asked["imageRef"])
    for disk in asked.get("block_device_mapping_v2") or []:
        if disk.get("source_type") == "image" and disk.get("boot_index") in (0, "0"):
            return str(disk.get("uuid") or "")[:255]
    return ""


def _networks(asked: dict[str, Any], count: int) -> list[dict[str, Any]] | str:
    """Return the requested networks.

    :raises HttpError: 400, when several servers share one port or address.
    """
    networks: list[dict[str, Any]] | str = asked.get("networks") or "auto"
    if not isinstance(networks, str) and count > 1:
        if any(each.get("port") for each in networks):
            raise HttpError(
                400,
                "Failed to launch multiple instances with a single configured port ID. Please "
                "launch your instance one by one with different ports.",
            )
        if any(each.get("fixed_ip") for each in networks):
            raise HttpError(400, "Invalid fixed IP: several servers cannot have the same address.")
    return networks


def _count(asked: dict[str, Any]) -> tuple[int, int]:
    """Return the least and the greatest number of servers that a request asks for."""
    least = int(asked.get("min_count", 1))
    most = int(asked.get("max_count", least))
    if least > most:
        raise HttpError(400, "min_count must be <= max_count")
    return least, most


def _name(name: str, number: int, count: int) -> str:
    # Six digits of a number and the dash fit into Nova's 255 characters then.
    return name if count == 1 else f"{name[:248]}-{number}"


#: The route that creates servers.
ROUTES = (("POST", "/servers", _create),)
