"""Servers over HTTP: their views, lists and details.

The statuses, names and messages are those of ``nova/api/openstack/compute/servers.py``, of
``views/servers.py`` and of their neighbours.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hotplate.cloud.http.rest import TAG_FILTERS, Answer, HttpError, Request, seconds_of
from hotplate.cloud.nova import capacity, policy
from hotplate.cloud.nova.interfaces import GUEST_IP, Interface, by_network, group_names
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_records import HOST, STATES, ServerRecord, naive
from hotplate.cloud.nova.servers import Servers

#: Maximum length of a pattern for names.
MAX_PATTERN = 255
#: Maximum number of repetitions in it, since the time of a search is a power of that number.
MAX_REPEATS = 2

SORT_KEYS: dict[str, Callable[[ServerRecord], object]] = {
    "created_at": lambda server: server.number,
    "updated_at": lambda server: server.notes.updated,
    "display_name": lambda server: server.spec.name,
    "uuid": lambda server: server.spec.id,
}


# -- lists --------------------


def _list(request: Request, caller: Caller) -> Answer:
    rows, links = _page(request, caller)
    return Answer(body={"servers": [brief(row, caller) for row in rows], **links})


def _detail(request: Request, caller: Caller) -> Answer:
    rows, links = _page(request, caller)
    # A server may be deleted while the list is built.
    states = [(row, caller.servers.status_if_present(row.spec.id)) for row in rows]
    shown = [_view(row, state, caller) for row, state in states if state]
    for each in shown:
        # A list has no groups (2.71 shows them for one server).
        each.pop("server_groups", None)
    return Answer(body={"servers": shown, **links})


def _page(request: Request, caller: Caller) -> tuple[list[ServerRecord], dict[str, object]]:
    request = _of_user(request, caller)
    rows = _sorted(request, _filtered(request, caller.servers))
    return caller.page(request, rows, lambda row: row.spec.id, "servers_links")


def _sorted(request: Request, rows: list[ServerRecord]) -> list[ServerRecord]:
    """Sort as requested; newest first by default."""
    keys = request.query.get("sort_key") or ["created_at"]
    directions = request.query.get("sort_dir") or ["desc"]
    # The last key first, because sorted() is stable.
    for index, key in reversed(list(enumerate(keys[: len(SORT_KEYS)]))):
        by = SORT_KEYS.get(key, SORT_KEYS["created_at"])
        down = (directions[index] if index < len(directions) else directions[-1]) == "desc"
        rows = sorted(rows, key=by, reverse=down)  # type: ignore[arg-type]
    return rows


def _filtered(request: Request, servers: Servers) -> list[ServerRecord]:
    # No deleted server is kept.
    if request.one("deleted").lower() in ("true", "1"):
        return []
    tests = [*_plain_filters(request), *_tag_filters(request), *_address_filters(request, servers)]
    if image := request.one("image"):
        tests.append(lambda row: servers.image_id(row.spec.image) == image)
    rows = [row for row in servers.all() if all(test(row) for test in tests)]
    # The compute is asked for a state only if a filter needs it.
    if not any(request.one(name) for name in ("status", *STATE_FILTERS)):
        return rows
    return [
        row
        for row in rows
        if (state := servers.status_if_present(row.spec.id)) and _in_state(state, request)
    ]


def _address_filters(request: Request, servers: Servers) -> list[Callable[[ServerRecord], bool]]:
    """Return filters that match fixed addresses with the patterns ``ip`` and ``ip6``."""

    def test(pattern: Callable[[str], bool], version: int) -> Callable[[ServerRecord], bool]:
        return lambda row: any(
            each["version"] == version and pattern(str(each["addr"]))
            for interface in servers.interfaces(row)
            for each in interface.addresses()
            if each["OS-EXT-IPS:type"] == "fixed"
        )

    return [
        test(_pattern_test(name, request.one(name)[:MAX_PATTERN]), version)
        for name, version in (("ip", 4), ("ip6", 6))
        if request.one(name)
    ]


# -- one --------------------


def _show(request: Request, caller: Caller) -> Answer:
    return Answer(body={"server": view(request.parts["id"], caller)})


def _addresses(request: Request, caller: Caller) -> Answer:
    interfaces = caller.servers.interfaces(caller.server(request))
    shown = addresses(interfaces)
    if not (network := request.parts.get("network", "")):
        return Answer(body={"addresses": shown})
    if network not in shown:
        raise HttpError(404, "Instance is not a member of specified network")
    return Answer(body={network: shown[network]})


def _password(request: Request, caller: Caller) -> Answer:
    """Return the password that the guest encrypted and posted to its metadata service."""
    return Answer(body={"password": caller.servers.password(caller.server(request).spec.id)})


def _clear_password(request: Request, caller: Caller) -> Answer:
    """Forget the password, which stays the guest's; it may post another one."""
    caller.servers.clear_password(caller.server(request).spec.id)
    return Answer(204)


def _topology(request: Request, caller: Caller) -> Answer:
    # It came with 2.78.
    if not caller.since(78):
        raise HttpError(404, "The resource could not be found.")
    caller.server(request)
    return Answer(body={"nodes": [], "pagesize_kb": None})


def _security_groups(request: Request, caller: Caller) -> Answer:
    interfaces = caller.servers.interfaces(caller.server(request))
    # Without Neutron a group has no id but its name.
    known = {
        group_id: name
        for each in interfaces
        for group_id, name in zip(each.group_ids or each.groups, each.groups, strict=True)
    }
    shown = [
        {
            "id": group_id,
            "name": name,
            "description": "Stored and not enforced",
            "tenant_id": caller.grant.project,
            "rules": [],
        }
        for group_id, name in known.items()
    ]
    return Answer(body={"security_groups": shown})


def _of_user(request: Request, caller: Caller) -> Request:
    """Return a request for a list without the filters that the caller may not give.

    :raises HttpError: 403 for the servers of all projects.
    """
    if "all_tenants" in request.query and request.one("all_tenants").lower() not in FALSE:
        kind = "detail" if request.path.endswith("/detail") else "index"
        raise policy.forbidden(f"servers:{kind}:get_all_tenants")
    refused = {name for name, minor in policy.USERS_FILTERS.items() if not caller.since(minor)}
    query = {name: values for name, values in request.query.items() if name not in refused}
    return replace(request, query=query)


#: Texts of a parameter that mean no (``strutils.bool_from_string``).
FALSE = ("0", "f", "false", "off", "n", "no")

#: Filter of a list -> the value of a server to compare with.
FILTERS: dict[str, Callable[[ServerRecord], str]] = {
    "flavor": lambda row: row.spec.flavor,
    "key_name": lambda row: row.spec.key_name,
    "availability_zone": lambda row: row.spec.availability_zone,
    "user_id": lambda row: row.notes.user,
    "hostname": lambda row: row.host_name,
    "config_drive": lambda row: str(row.spec.config_drive).lower(),
    "locked": lambda row: str(row.notes.locked).lower(),
}
STATE_FILTERS = ("vm_state", "power_state", "task_state")


def _plain_filters(request: Request) -> list[Callable[[ServerRecord], bool]]:
    tests: list[Callable[[ServerRecord], bool]] = []
    for name, value in (
        ("name", lambda row: row.spec.name),
        ("description", lambda row: row.notes.description),
    ):
        # The lambdas below have defaults because the variables of the loops change.
        if text := request.one(name):
            pattern = _pattern_test(name, text[:MAX_PATTERN])
            tests.append(lambda row, value=value, pattern=pattern: pattern(value(row)))  # type: ignore[misc]
    for name, value in FILTERS.items():
        if wanted := request.one(name):
            wanted = wanted.lower() if name in ("config_drive", "locked") else wanted
            wanted = capacity.flavor(wanted).name if name == "flavor" else wanted
            tests.append(lambda row, value=value, wanted=wanted: value(row) == wanted)  # type: ignore[misc]
    since = moment(request, "changes-since", 0.0)
    before = moment(request, "changes-before", float("inf"))
    if since > 0 or before < float("inf"):
        tests.append(lambda row: since <= _changed(row) <= before)
    return tests


def _changed(row: ServerRecord) -> float:
    return seconds_of(row.notes.updated or row.created)


def moment(request: Request, name: str, default: float) -> float:
    """Return a time parameter of the query, in seconds since the epoch.

    :raises HttpError: 400, when it is not a time.
    """
    text = request.one(name)
    try:
        return seconds_of(text) if text else default
    except (ValueError, OverflowError):
        raise HttpError(400, f"Invalid input for query parameters {name}: '{text[:100]}'") from None


def _in_state(state: tuple[str, str], request: Request) -> bool:
    words = {word.upper() for word in request.query.get("status", [])}
    if words and state[0] not in words:
        return False
    machine, power, task = STATES.get(state[0], STATES["ERROR"])
    shown = dict(zip(STATE_FILTERS, (machine, str(power), task or ""), strict=True))
    return all(request.one(name) in ("", value) for name, value in shown.items())


def _pattern_test(name: str, text: str) -> Callable[[str], bool]:
    """Return a test for a pattern; one that could take for ever to match is taken as plain text.

    :param name: of the filter, for the error.
    """
    try:
        pattern = re.compile(text)
    except re.error:
        raise HttpError(400, f"Invalid filter field: {name}='{text}'.") from None
    # A group may repeat a repetition, and the time of a search is then exponential.
    if "(" in text or len(re.findall(r"[*+?{]", text)) > MAX_REPEATS:
        return lambda value: text in value
    return lambda value: pattern.search(value) is not None


def _tag_filters(request: Request) -> list[Callable[[ServerRecord], bool]]:
    return [
        lambda row, fits=fits, wanted=wanted: fits(set(row.notes.tags), set(wanted.split(",")))  # type: ignore[misc]
        for name, fits in TAG_FILTERS.items()
        if (wanted := request.one(name))
    ]


# -- views --------------------


def view(server_id: str, caller: Caller) -> dict[str, Any]:
    """Return a server with its present details.

    :raises NoSuchServerError: when there is none.
    """
    return _view(caller.servers.get(server_id), caller.servers.status(server_id), caller)


def changed_view(server_id: str, caller: Caller, *, rebuilt: bool = False) -> dict[str, Any]:
    """Return a server as the answer to a change: before 2.75, without most of its details.

    As in ``_update`` and ``_action_rebuild`` of Nova's ``api/openstack/compute/servers.py``.

    :param rebuilt: the change is a rebuild.
    """
    shown = view(server_id, caller)
    if not caller.since(75):
        hidden = [*_DETAILS, *(name for name in shown if name.startswith(_DETAIL_PREFIXES))]
        if not (rebuilt and caller.since(54)):
            hidden.append("key_name")
        for name in hidden:
            shown.pop(name, None)
        shown["addresses"] = addresses(caller.servers.interfaces(caller.servers.get(server_id)))
    if rebuilt and caller.since(57):
        data = caller.servers.get(server_id).spec.user_data
        shown["user_data"] = base64.b64encode(data).decode() or None
    return shown


#: What the answers to changes lack before 2.75.
_DETAIL_PREFIXES = ("OS-EXT-AZ:", "OS-EXT-STS:", "OS-SRV-USG:", "os-extended-volumes:")
_DETAILS = ("config_drive", "security_groups")


def brief(server: ServerRecord, caller: Caller) -> dict[str, object]:
    """Return a server as a list without details shows it."""
    spec = server.spec
    return {"id": spec.id, "name": spec.name, "links": caller.link(f"/servers/{spec.id}")}


def addresses(interfaces: Sequence[Interface]) -> dict[str, list[dict[str, object]]]:
    """Return a server's addresses without the fields that only the server's own view has."""
    return {
        network: [{"version": each["version"], "addr": each["addr"]} for each in those]
        for network, those in by_network(interfaces).items()
    }


def _view(server: ServerRecord, status: tuple[str, str], caller: Caller) -> dict[str, Any]:
    word, reason = status
    spec, notes = server.spec, server.notes
    interfaces = caller.servers.interfaces(server)
    groups = group_names(interfaces)
    machine, power, task = STATES.get(word, STATES["ERROR"])
    shown: dict[str, Any] = {
        **brief(server, caller),
        "status": word,
        "tenant_id": caller.grant.project,
        "user_id": notes.user or caller.grant.user.id,
        "metadata": dict(spec.metadata),
        "hostId": hashlib.sha224(f"{caller.grant.project}{HOST}".encode()).hexdigest(),
        "image": _image(caller.servers.image_id(spec.image), caller),
        "flavor": _flavor(spec.flavor, caller),
        "created": server.created,
        "updated": notes.updated or server.created,
        "addresses": by_network(interfaces),
        "accessIPv4": notes.access_ipv4 or ("" if server.notes.has_ports else GUEST_IP),
        "accessIPv6": notes.access_ipv6,
        "key_name": spec.key_name or None,
        "config_drive": "True" if spec.config_drive else "",
        **({"security_groups": [{"name": each} for each in groups]} if groups else {}),
        "os-extended-volumes:volumes_attached": [],
        "OS-DCF:diskConfig": notes.disk_config,
        "OS-EXT-AZ:availability_zone": spec.availability_zone,
        "OS-SRV-USG:launched_at": None if word == "BUILD" else naive(server.created),
        "OS-SRV-USG:terminated_at": None,
        "OS-EXT-STS:vm_state": machine,
        "OS-EXT-STS:power_state": power,
        "OS-EXT-STS:task_state": task,
        **_newer(server, caller),
    }
    if word == "ERROR":
        shown["fault"] = {"code": 500, "created": server.created, "message": reason}
    elif word != "SHUTOFF":
        shown["progress"] = 0
    return shown


def _newer(server: ServerRecord, caller: Caller) -> dict[str, object]:
    """Return the fields that microversions added, by the number of the version."""
    notes = server.notes
    by_version: dict[int, dict[str, object]] = {
        9: {"locked": notes.locked},
        19: {"description": notes.description or None},
        26: {"tags": list(notes.tags)},
        63: {"trusted_image_certificates": None},
        71: {"server_groups": [notes.group] if notes.group else []},
        73: {"locked_reason": notes.locked_reason or None},
        90: {"OS-EXT-SRV-ATTR:hostname": server.host_name},
        96: {"pinned_availability_zone": None},
    }
    fields: dict[str, object] = {}
    for minor, brought in by_version.items():
        if caller.since(minor):
            fields.update(brought)
    return fields


def _image(image: str, caller: Caller) -> object:
    """Return the view of an image by its id."""
    if not image:
        return ""
    return {"id": image, "links": caller.link(f"/images/{image}", bookmark=True)}


def _flavor(flavor: str, caller: Caller) -> dict[str, Any]:
    if caller.since(47):
        return capacity.embedded(flavor)
    own = capacity.flavor(flavor).id
    return {"id": own, "links": caller.link(f"/flavors/{own}", bookmark=True)}


#: The routes below ``/servers`` that read.
ROUTES = (
    ("GET", "/servers", _list),
    ("GET", "/servers/detail", _detail),
    ("GET", "/servers/{id}", _show),
    ("GET", "/servers/{id}/ips", _addresses),
    ("GET", "/servers/{id}/ips/{network}", _addresses),
    ("GET", "/servers/{id}/os-server-password", _password),
    ("DELETE", "/servers/{id}/os-server-password", _clear_password),
    ("GET", "/servers/{id}/topology", _topology),
    ("GET", "/servers/{id}/os-security-groups", _security_groups),
)
