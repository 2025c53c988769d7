"""Neutron's v2.0 API over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from wsgiref.types import StartResponse, WSGIEnvironment

from neutron_lib import exceptions
from webob import exc

from hotplate.cloud.http.gateway import WSGIApp
from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes, respond
from hotplate.cloud.keystone.guard import Guard
from hotplate.cloud.keystone.identity import Grant, Identity
from hotplate.cloud.neutron.attributes import KINDS, ResourceKind, extensions
from hotplate.cloud.neutron.errors import described, http_error, refusal
from hotplate.cloud.neutron.listing import chosen, listed
from hotplate.cloud.neutron.networking import Networking
from hotplate.cloud.neutron.records import Values

TAGS = 50
TAG_LENGTH = 255
"""Neutron: ``MAX_TAGS_COUNT`` and ``MAX_TAG_LEN`` of its tagging extension."""
BULK = 100
"""Maximum number of resources that one request may create."""

Handler = Callable[[Request, Grant], Answer]


class NeutronApi:
    """Neutron's WSGI application."""

    def __init__(self, networking: Networking, identity: Identity) -> None:
        self._networking = networking
        self._identity = identity
        self._guard = Guard(identity)
        self._routes: Routes[Grant] = Routes()
        for kind in KINDS.values():
            self._add_kind(kind)
        self._add_routers()
        self._add_quotas()
        for path, handler in (
            ("/v2.0", self._root),
            ("/v2.0/extensions", self._extensions),
            ("/v2.0/extensions/{alias}", self._extension),
            ("/v2.0/auto-allocated-topology/{project}", self._auto_allocated),
        ):
            self._routes.add("GET", path, handler)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        return respond(environ, start_response, self._answer, describe=_describe)

    def _answer(self, request: Request) -> Answer:
        if not request.path and request.method in ("GET", "HEAD"):
            return Answer(body={"versions": [_version(self._base)]})
        caller = self._guard.check(request)
        try:
            return self._routes.answer(request, caller)
        except HttpError:
            raise
        except Exception as error:
            answer = http_error(error)
            if answer is None:
                raise
            raise answer from error

    @property
    def _base(self) -> str:
        return self._identity.addresses.host["neutron"]

    # -- common to all kinds --------------------

    def _add_kind(self, kind: ResourceKind) -> None:
        collection = f"/v2.0/{kind.path}"
        one = collection + "/{id}"

        def add(
            method: str, path: str, handler: Callable[[ResourceKind, Request, Grant], Answer]
        ) -> None:
            self._routes.add(method, path, lambda request, caller: handler(kind, request, caller))

        add("GET", collection, self._list)
        add("POST", collection, self._create)
        add("GET", one, self._show)
        add("PUT", one, self._change)
        add("DELETE", one, self._delete)
        add("GET", one + "/tags", self._tags)
        add("PUT", one + "/tags", self._set_tags)
        add("POST", one + "/tags", self._add_tags)
        add("DELETE", one + "/tags", self._remove_tags)
        add("GET", one + "/tags/{tag}", self._has_tag)
        add("PUT", one + "/tags/{tag}", self._add_tag)
        add("DELETE", one + "/tags/{tag}", self._remove_tag)

    def _list(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        if kind.name == "security_groups":
            with self._networking.transaction():
                self._networking.groups.default(caller.project)
        everything = self._networking.all(kind.name)
        visible = [record for record in everything if _visible(record, caller)]
        return Answer(body=listed(kind, visible, request, f"{self._base}{request.path}"))

    def _create(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        body = request.json()
        if kind.name in body:
            return self._create_many(kind, body[kind.name], caller)
        made = self._networking.create(kind.name, _inside(body, kind.single), caller.project)
        return Answer(201, {kind.single: made})

    def _create_many(self, kind: ResourceKind, bodies: object, caller: Grant) -> Answer:
        if not isinstance(bodies, list) or not 0 < len(bodies) <= BULK:
            raise exc.HTTPBadRequest(f"{kind.name} must be a list of 1 to {BULK} resources")
        with self._networking.transaction():
            made = [
                self._networking.create(kind.name, _object(body), caller.project) for body in bodies
            ]
        return Answer(201, {kind.name: made})

    def _show(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        record = self._mine(kind, request, caller)
        fields = set(request.query.get("fields", []))
        return Answer(body={kind.single: chosen(record, fields)})

    def _change(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        record = self._mine(kind, request, caller)
        body = _inside(request.json(), kind.single)
        return Answer(body={kind.single: self._networking.change(kind.name, record["id"], body)})

    def _delete(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        record = self._mine(kind, request, caller)
        self._networking.delete(kind.name, record["id"])
        return Answer(204)

    def _mine(self, kind: ResourceKind, request: Request, caller: Grant) -> Values:
        """Return the resource of a path, if the caller may see it."""
        record = self._networking.get(kind.name, request.part("id"))
        if not _visible(record, caller):
            raise self._networking.kinds[kind.name].missing(request.part("id"))
        return record

    # -- tags --------------------

    def _tags(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        return Answer(body={"tags": self._mine(kind, request, caller)["tags"]})

    def _has_tag(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        if request.part("tag") not in self._mine(kind, request, caller)["tags"]:
            raise _no_tag(request.part("tag"))
        return Answer(204)

    def _set_tags(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        tags = _tag_list(request.json().get("tags"))
        return self._keep_tags(kind, self._mine(kind, request, caller), tags)

    def _add_tags(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        record = self._mine(kind, request, caller)
        tags = _tag_list(request.json().get("tags"))
        return self._keep_tags(kind, record, [*record["tags"], *tags])

    def _add_tag(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        record = self._mine(kind, request, caller)
        tags = [*record["tags"], *_tag_list([request.part("tag")])]
        self._keep_tags(kind, record, tags)
        return Answer(201)

    def _remove_tags(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        self._keep_tags(kind, self._mine(kind, request, caller), [])
        return Answer(204)

    def _remove_tag(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        record, tag = self._mine(kind, request, caller), request.part("tag")
        if tag not in record["tags"]:
            raise _no_tag(tag)
        self._keep_tags(kind, record, [each for each in record["tags"] if each != tag])
        return Answer(204)

    def _keep_tags(self, kind: ResourceKind, record: Values, tags: list[str]) -> Answer:
        tags = sorted(set(tags))
        if len(tags) > TAGS:
            raise exc.HTTPBadRequest(f"A resource has {TAGS} tags at most")
        resources = self._networking.kinds[kind.name]
        with self._networking.transaction():
            kept = resources.get(record["id"])
            self._networking.records.change(kind.name, kept, {"tags": tags})
        return Answer(body={"tags": tags})

    # -- routers --------------------

    def _add_routers(self) -> None:
        routers = self._networking.routers
        one = "/v2.0/routers/{id}/"
        for name, act in (
            ("add_router_interface", routers.add_interface),
            ("remove_router_interface", routers.remove_interface),
        ):
            self._routes.add("PUT", one + name, self._router_action(act))
        for name, change in (
            ("add_extraroutes", routers.add_routes),
            ("remove_extraroutes", routers.remove_routes),
        ):
            self._routes.add("PUT", one + name, self._routes_action(change))

    def _router_action(self, act: Callable[[Values, Values], Values]) -> Handler:
        def handle(request: Request, caller: Grant) -> Answer:
            self._mine(KINDS["routers"], request, caller)
            body = request.json()
            with self._networking.transaction():
                router = self._networking.routers.get(request.part("id"))
                return Answer(body=act(router, body))

        return handle

    def _routes_action(self, change: Callable[[Values, list[Values]], Values]) -> Handler:
        def handle(request: Request, caller: Grant) -> Answer:
            self._mine(KINDS["routers"], request, caller)
            routes = _inside(request.json(), "router").get("routes")
            routes = KINDS["routers"].changes({"routes": routes})["routes"] or []
            with self._networking.transaction():
                routers = self._networking.routers
                router = routers.view(change(routers.get(request.part("id")), routes))
            return Answer(body={"router": router})

        return handle

    # -- quotas --------------------

    def _add_quotas(self) -> None:
        quotas = self._networking.quotas
        one = "/v2.0/quotas/{project}"
        add = self._routes.add
        add("GET", "/v2.0/quotas", lambda *_: Answer(body={"quotas": quotas.all()}))
        for path, read in (
            ("", quotas.of),
            ("/default", lambda _: quotas.default()),
            ("/details", quotas.details),
            ("/details.json", quotas.details),
        ):
            add("GET", one + path, self._quota(read))
        add("PUT", one, self._change_quota)
        add("DELETE", one, self._reset_quota)

    def _quota(self, read: Callable[[str], object]) -> Handler:
        def handle(request: Request, caller: Grant) -> Answer:
            return Answer(body={"quota": read(_project(request, caller))})

        return handle

    def _change_quota(self, request: Request, caller: Grant) -> Answer:
        limits = _inside(request.json(), "quota")
        with self._networking.transaction():
            changed = self._networking.quotas.change(_project(request, caller), limits)
        return Answer(body={"quota": changed})

    def _reset_quota(self, request: Request, caller: Grant) -> Answer:
        self._networking.quotas.reset(_project(request, caller))
        return Answer(204)

    # -- extensions and versions --------------------

    def _root(self, request: Request, caller: Grant) -> Answer:
        del request, caller
        links = [
            {
                "name": kind.single,
                "collection": kind.name,
                "links": [{"rel": "self", "href": f"{self._base}/v2.0/{kind.path}"}],
            }
            for kind in KINDS.values()
        ]
        return Answer(body={"resources": links})

    def _extensions(self, request: Request, caller: Grant) -> Answer:
        del request, caller
        return Answer(body={"extensions": extensions()})

    def _extension(self, request: Request, caller: Grant) -> Answer:
        del caller
        alias = request.part("alias")
        for extension in extensions():
            if extension["alias"] == alias:
                return Answer(body={"extension": extension})
        raise exceptions.ExtensionsNotFound(extensions=[alias])

    def _auto_allocated(self, request: Request, caller: Grant) -> Answer:
        project = _project(request, caller)
        topology = {"id": self._networking.default_network, "tenant_id": project}
        return Answer(body={"auto_allocated_topology": topology})


def app(networking: Networking, identity: Identity) -> WSGIApp:
    """Return Neutron as a WSGI application."""
    return NeutronApi(networking, identity)


def _describe(error: HttpError) -> object:
    return described(error.kind or _KINDS.get(error.status, "HTTPException"), str(error))


_KINDS = {400: "HTTPBadRequest", 403: "PolicyNotAuthorized", 404: "HTTPNotFound"}
"""Status -> type of the errors for which Neutron has no name of its own."""


def _version(base: str) -> Values:
    return {
        "id": "v2.0",
        "status": "CURRENT",
        "links": [{"rel": "self", "href": f"{base}/v2.0/"}],
    }


def _visible(record: Values, caller: Grant) -> bool:
    return (
        "admin" in caller.roles
        or record["project_id"] == caller.project
        or bool(record.get("shared") or record.get("router:external"))
    )


def _project(request: Request, caller: Grant) -> str:
    """Return the project of a path, the caller's own unless an administrator calls."""
    project = request.part("project")
    if project != caller.project and "admin" not in caller.roles:
        raise refusal(403, "PolicyNotAuthorized", "The project is not yours.")
    return project


def _object(body: object) -> Values:
    if not isinstance(body, dict):
        raise exc.HTTPBadRequest("Resource body required")
    return body


def _inside(body: Values, single: str) -> Values:
    if single not in body:
        raise exc.HTTPBadRequest(f"Unable to find '{single}' in request body")
    return _object(body[single])


def _tag_list(tags: object) -> list[str]:
    if not isinstance(tags, list) or not all(
        isinstance(tag, str) and 0 < len(tag) <= TAG_LENGTH for tag in tags
    ):
        raise exc.HTTPBadRequest(
            f"Invalid input for tags. Reason: it is no list of texts of 1 to {TAG_LENGTH}."
        )
    return tags


def _no_tag(tag: str) -> HttpError:
    return refusal(404, "TagNotFound", f"Tag {tag} could not be found.")
