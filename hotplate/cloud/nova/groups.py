"""Server groups: stored and shown, but without effect, because there is only one host."""

from __future__ import annotations

import json
import sqlite3
import uuid

from hotplate.cloud.database.store import Store
from hotplate.cloud.http.rest import Answer, HttpError, Request
from hotplate.cloud.nova import schemas
from hotplate.cloud.nova.microversions import MAX_PAGE, Caller


def all_groups(store: Store) -> list[sqlite3.Row]:
    """Return all groups, oldest first."""
    return store.rows("SELECT * FROM hotplate_server_group ORDER BY rowid")


def _get(group_id: str, caller: Caller) -> sqlite3.Row:
    if group := caller.store.first("hotplate_server_group", id=group_id):
        return group
    raise HttpError(404, f"Instance group {group_id} could not be found.")


def _view(group: sqlite3.Row, caller: Caller) -> dict[str, object]:
    members = [each.spec.id for each in caller.servers.all() if each.notes.group == group["id"]]
    shown: dict[str, object] = {"id": group["id"], "name": group["name"], "members": members}
    # 2.13 added the owner; 2.64 has one policy with rules instead of a list of policies.
    if caller.since(13):
        shown |= {"project_id": caller.grant.project, "user_id": caller.grant.user.id}
    if caller.since(64):
        return {**shown, "policy": group["policy"], "rules": json.loads(group["rules"])}
    return {**shown, "policies": [group["policy"]], "metadata": {}}


def _list(request: Request, caller: Caller) -> Answer:
    start = request.number("offset", default=0, most=MAX_PAGE)
    limit = request.number("limit", default=MAX_PAGE, most=MAX_PAGE)
    groups = all_groups(caller.store)[start : start + limit]
    return Answer(body={"server_groups": [_view(each, caller) for each in groups]})


def _create(request: Request, caller: Caller) -> Answer:
    schema = schemas.GROUP_SINCE_64 if caller.since(64) else schemas.GROUP
    asked = schemas.read(request, schema)["server_group"]
    if len(all_groups(caller.store)) >= caller.servers.quotas.server_groups:
        raise HttpError(403, "Quota exceeded, too many server groups.")
    policy = asked["policy"] if caller.since(64) else asked["policies"][0]
    rules = asked.get("rules") or {}
    if rules and policy != "anti-affinity":
        raise HttpError(
            400,
            f"Only anti-affinity policy supports rules, but the specified policy is {policy}.",
        )
    group_id, name = str(uuid.uuid4()), asked["name"]
    caller.store.insert("hotplate_server_group", group_id, name, policy, json.dumps(rules))
    return Answer(body={"server_group": _view(_get(group_id, caller), caller)})


def _show(request: Request, caller: Caller) -> Answer:
    return Answer(body={"server_group": _view(_get(request.parts["id"], caller), caller)})


def _delete(request: Request, caller: Caller) -> Answer:
    group = _get(request.parts["id"], caller)
    caller.store.delete("hotplate_server_group", id=group["id"])
    return Answer(204)


#: The routes of server groups.
ROUTES = (
    ("GET", "/os-server-groups", _list),
    ("POST", "/os-server-groups", _create),
    ("GET", "/os-server-groups/{id}", _show),
    ("DELETE", "/os-server-groups/{id}", _delete),
)
