"""Server groups: stored and shown, but without effect, because there is only one host."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import Any

from hotplate.cloud.database.store import Store
from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes
from hotplate.cloud.nova import schemas
from hotplate.cloud.nova.microversions import MAX_PAGE, Caller
from hotplate.cloud.nova.servers import Servers


@dataclass(frozen=True)
class Group:
    """A server group.

    :param rules: the rules of its policy.
    """

    id: str
    name: str
    policy: str
    rules: dict[str, Any]


class Groups:
    """The server groups of one cloud."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> list[Group]:
        """Return all groups, oldest first."""
        rows = self._store.rows("SELECT * FROM hotplate_server_group ORDER BY rowid")
        return [
            Group(row["id"], row["name"], row["policy"], json.loads(row["rules"])) for row in rows
        ]

    def get(self, group_id: str) -> Group | None:
        """Return the group with that id, or None."""
        return next((each for each in self.all() if each.id == group_id), None)

    def create(self, name: str, policy: str, rules: dict[str, Any]) -> Group:
        """Store a new group."""
        group = Group(str(uuid.uuid4()), name, policy, rules)
        self._store.insert("hotplate_server_group", group.id, name, policy, json.dumps(rules))
        return group

    def delete(self, group_id: str) -> bool:
        """Delete a group; return False when no group has that id."""
        return bool(self._store.delete("hotplate_server_group", id=group_id))


class GroupsApi:
    """Resources below ``/os-server-groups``."""

    def __init__(self, groups: Groups, servers: Servers) -> None:
        self._groups = groups
        self._servers = servers

    def add_to(self, routes: Routes[Caller]) -> None:
        """Add the routes of server groups."""
        routes.add("GET", "/os-server-groups", self._list)
        routes.add("POST", "/os-server-groups", self._create)
        routes.add("GET", "/os-server-groups/{id}", self._show)
        routes.add("DELETE", "/os-server-groups/{id}", self._delete)

    def _view(self, group: Group, caller: Caller) -> dict[str, object]:
        members = [each.spec.id for each in self._servers.all() if each.notes.group == group.id]
        shown: dict[str, object] = {"id": group.id, "name": group.name, "members": members}
        # 2.13 added the owner; 2.64 has one policy with rules instead of a list of policies.
        if caller.since(13):
            shown |= {"project_id": caller.grant.project, "user_id": caller.grant.user.id}
        if caller.since(64):
            return {**shown, "policy": group.policy, "rules": group.rules}
        return {**shown, "policies": [group.policy], "metadata": {}}

    def _list(self, request: Request, caller: Caller) -> Answer:
        start = request.number("offset", default=0, most=MAX_PAGE)
        limit = request.number("limit", default=MAX_PAGE, most=MAX_PAGE)
        groups = self._groups.all()[start : start + limit]
        return Answer(body={"server_groups": [self._view(each, caller) for each in groups]})

    def _create(self, request: Request, caller: Caller) -> Answer:
        schema = schemas.GROUP_SINCE_64 if caller.since(64) else schemas.GROUP
        asked = schemas.read(request, schema)["server_group"]
        if len(self._groups.all()) >= self._servers.quotas.server_groups:
            raise HttpError(403, "Quota exceeded, too many server groups.")
        policy = asked["policy"] if caller.since(64) else asked["policies"][0]
        rules = asked.get("rules") or {}
        if rules and policy != "anti-affinity":
            raise HttpError(
                400,
                f"Only anti-affinity policy supports rules, but the specified policy is {policy}.",
            )
        made = self._groups.create(asked["name"], policy, rules)
        return Answer(body={"server_group": self._view(made, caller)})

    def _show(self, request: Request, caller: Caller) -> Answer:
        group = self._groups.get(request.parts["id"])
        if group is None:
            raise _no_group(request)
        return Answer(body={"server_group": self._view(group, caller)})

    def _delete(self, request: Request, _caller: Caller) -> Answer:
        if not self._groups.delete(request.parts["id"]):
            raise _no_group(request)
        return Answer(204)


def _no_group(request: Request) -> HttpError:
    return HttpError(404, f"Instance group {request.parts['id']} could not be found.")
