"""Servers over HTTP: lists and details.

The statuses, names and messages are those of ``nova/api/openstack/compute/servers.py`` and its
neighbours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes, page
from hotplate.cloud.nova import server_views
from hotplate.cloud.nova.flavors import PAGE
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.server_records import NoSuchServerError, ServerRecord
from hotplate.cloud.nova.servers import Servers

PATTERN = 255
"""Maximum length of a pattern for names."""
REPEATS = 2
"""Maximum number of repetitions in it, since the time of a search is a power of that number."""

SORT_KEYS: dict[str, Callable[[ServerRecord], object]] = {
    "created_at": lambda server: server.number,
    "updated_at": lambda server: server.notes.updated,
    "display_name": lambda server: server.spec.name,
    "uuid": lambda server: server.spec.id,
}


def find(servers: Servers, server_id: str) -> ServerRecord:
    """Return the server with that id.

    :raises HttpError: 404, when there is none.
    """
    try:
        return servers.get(server_id)
    except NoSuchServerError:
        raise HttpError(404, f"Instance {server_id} could not be found.") from None


class ServersApi:
    """Resources below ``/servers``."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def add_to(self, routes: Routes[Caller]) -> None:
        """Add the routes below ``/servers``."""
        routes.add("GET", "/servers", self._list)
        routes.add("GET", "/servers/detail", self._detail)
        routes.add("GET", "/servers/{id}", self._show)
        routes.add("GET", "/servers/{id}/ips", self._addresses)
        routes.add("GET", "/servers/{id}/ips/{network}", self._addresses)
        routes.add("GET", "/servers/{id}/os-server-password", self._password)
        routes.add("GET", "/servers/{id}/os-security-groups", self._security_groups)

    def record(self, request: Request) -> ServerRecord:
        """Return the server of the request's path.

        :raises HttpError: 404, when there is none.
        """
        return find(self._servers, request.part("id"))

    # -- lists --------------------

    def _list(self, request: Request, caller: Caller) -> Answer:
        rows, links = self._page(request, caller, "/servers")
        return Answer(body={"servers": [server_views.brief(row, caller) for row in rows], **links})

    def _detail(self, request: Request, caller: Caller) -> Answer:
        rows, links = self._page(request, caller, "/servers/detail")
        # A server may be deleted while the list is built.
        states = [(row, self._status(row)) for row in rows]
        shown = [self._full(row, state, caller) for row, state in states if state]
        return Answer(body={"servers": shown, **links})

    def _status(self, row: ServerRecord) -> tuple[str, str] | None:
        try:
            return self._servers.status(row.spec.id)
        except NoSuchServerError:
            return None

    def _page(
        self, request: Request, caller: Caller, path: str
    ) -> tuple[list[ServerRecord], dict[str, object]]:
        limit = request.number("limit", default=PAGE, most=PAGE)
        rows, more = page(
            self._sorted(request, self._filtered(request)),
            lambda row: row.spec.id,
            limit=limit,
            marker=request.one("marker"),
        )
        if not more or not rows:
            return rows, {}
        following = f"{caller.base}{path}?limit={limit}&marker={rows[-1].spec.id}"
        return rows, {"servers_links": [{"rel": "next", "href": following}]}

    def _sorted(self, request: Request, rows: list[ServerRecord]) -> list[ServerRecord]:
        """Sort as requested; newest first by default."""
        keys = request.query.get("sort_key") or ["created_at"]
        directions = request.query.get("sort_dir") or ["desc"]
        for index, key in reversed(list(enumerate(keys[: len(SORT_KEYS)]))):
            by = SORT_KEYS.get(key, SORT_KEYS["created_at"])
            down = (directions[index] if index < len(directions) else directions[-1]) == "desc"
            rows = sorted(rows, key=by, reverse=down)  # type: ignore[arg-type]
        return rows

    def _filtered(self, request: Request) -> list[ServerRecord]:
        if request.one("deleted").lower() in ("true", "1"):
            return []
        tests = [*_plain_filters(request), *_tag_filters(request), *self._address_filters(request)]
        rows = [row for row in self._servers.all() if all(test(row) for test in tests)]
        if not any(request.one(name) for name in ("status", *STATE_FILTERS)):
            return rows
        return [row for row in rows if (state := self._status(row)) and _in_state(state, request)]

    def _address_filters(self, request: Request) -> list[Callable[[ServerRecord], bool]]:
        """Return filters that match fixed addresses with the patterns ``ip`` and ``ip6``."""

        def test(pattern: Callable[[str], bool], version: int) -> Callable[[ServerRecord], bool]:
            return lambda row: any(
                each["version"] == version and pattern(str(each["addr"]))
                for interface in self._servers.interfaces(row)
                for each in interface.addresses()
                if each["OS-EXT-IPS:type"] == "fixed"
            )

        return [
            test(_pattern_test(name, request.one(name)[:PATTERN]), version)
            for name, version in (("ip", 4), ("ip6", 6))
            if request.one(name)
        ]

    # -- one --------------------

    def _show(self, request: Request, caller: Caller) -> Answer:
        server = self.record(request)
        status = self._servers.status(server.spec.id)
        return Answer(body={"server": self._full(server, status, caller)})

    def _full(
        self, server: ServerRecord, status: tuple[str, str], caller: Caller
    ) -> dict[str, object]:
        interfaces = self._servers.interfaces(server)
        return server_views.full(server, status, caller, interfaces=interfaces)

    def _addresses(self, request: Request, _caller: Caller) -> Answer:
        interfaces = self._servers.interfaces(self.record(request))
        addresses = server_views.addresses(interfaces)
        if not (network := request.parts.get("network", "")):
            return Answer(body={"addresses": addresses})
        if network not in addresses:
            raise HttpError(404, "Instance is not a member of specified network")
        return Answer(body={network: addresses[network]})

    def _password(self, request: Request, _caller: Caller) -> Answer:
        """Return the password that the guest encrypted and posted to its metadata service."""
        return Answer(body={"password": self._servers.password(self.record(request).spec.id)})

    def _security_groups(self, request: Request, caller: Caller) -> Answer:
        names = server_views.groups(self._servers.interfaces(self.record(request)))
        shown = [
            {
                "id": each["name"],
                "name": each["name"],
                "description": "Stored and not enforced",
                "tenant_id": caller.grant.project,
                "rules": [],
            }
            for each in names
        ]
        return Answer(body={"security_groups": shown})


FILTERS: dict[str, Callable[[ServerRecord], str]] = {
    "image": lambda row: row.spec.image,
    "flavor": lambda row: row.spec.flavor,
    "key_name": lambda row: row.spec.key_name,
    "availability_zone": lambda row: row.spec.availability_zone,
    "uuid": lambda row: row.spec.id,
    "user_id": lambda row: row.notes.user,
    "host": lambda _: server_views.HOST,
    "node": lambda _: server_views.HOST,
    "hostname": lambda row: row.host_name,
    "access_ip_v4": lambda row: row.notes.access_ipv4,
    "access_ip_v6": lambda row: row.notes.access_ipv6,
    "config_drive": lambda row: str(row.spec.config_drive).lower(),
    "locked": lambda row: str(row.notes.locked).lower(),
    "server_groups": lambda row: row.notes.group,
}
"""Filter of a list -> the value of a server to compare with."""
STATE_FILTERS = ("vm_state", "power_state", "task_state")


def _plain_filters(request: Request) -> list[Callable[[ServerRecord], bool]]:
    tests: list[Callable[[ServerRecord], bool]] = []
    for name, value in (
        ("name", lambda row: row.spec.name),
        ("description", lambda row: row.notes.description),
    ):
        if text := request.one(name):
            pattern = _pattern_test(name, text[:PATTERN])
            tests.append(lambda row, value=value, pattern=pattern: pattern(value(row)))  # type: ignore[misc]
    for name, value in FILTERS.items():
        if wanted := request.one(name):
            wanted = wanted.lower() if name in ("config_drive", "locked") else wanted
            tests.append(lambda row, value=value, wanted=wanted: value(row) == wanted)  # type: ignore[misc]
    since = moment(request, "changes-since", 0.0)
    before = moment(request, "changes-before", float("inf"))
    if since > 0 or before < float("inf"):
        tests.append(lambda row: since <= _changed(row) <= before)
    return tests


def _changed(row: ServerRecord) -> float:
    return datetime.fromisoformat(row.notes.updated or row.created).timestamp()


def moment(request: Request, name: str, default: float) -> float:
    """Return a time parameter of the query, in seconds since the epoch.

    :raises HttpError: 400, when it is not a time.
    """
    text = request.one(name)
    if not text:
        return default
    try:
        at = datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise HttpError(400, f"Invalid input for query parameters {name}: '{text[:100]}'") from None


def _in_state(state: tuple[str, str], request: Request) -> bool:
    words = {word.upper() for word in request.query.get("status", [])}
    if words and state[0] not in words:
        return False
    machine, power, task = server_views.STATES.get(state[0], server_views.STATES["ERROR"])
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
    if "(" in text or len(re.findall(r"[*+?{]", text)) > REPEATS:
        return lambda value: text in value
    return lambda value: pattern.search(value) is not None


def _tag_filters(request: Request) -> list[Callable[[ServerRecord], bool]]:
    wanted = {
        name: set(request.one(name).split(","))
        for name in ("tags", "tags-any", "not-tags", "not-tags-any")
        if request.one(name)
    }
    fits: dict[str, Callable[[set[str], set[str]], bool]] = {
        "tags": lambda has, tags: tags <= has,
        "tags-any": lambda has, tags: bool(tags & has),
        "not-tags": lambda has, tags: not tags <= has,
        "not-tags-any": lambda has, tags: not tags & has,
    }
    return [
        lambda row, name=name, tags=tags: fits[name](set(row.notes.tags), tags)  # type: ignore[misc]
        for name, tags in wanted.items()
    ]
