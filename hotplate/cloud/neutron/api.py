"""Neutron's v2.0 API over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from wsgiref.types import StartResponse, WSGIEnvironment

from neutron_lib import exceptions
from webob import exc

from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes, respond
from hotplate.cloud.keystone.guard import admit
from hotplate.cloud.keystone.identity import Grant, Identity
from hotplate.cloud.neutron import policy
from hotplate.cloud.neutron.attributes import KINDS, ResourceKind, body_object, extensions, inside
from hotplate.cloud.neutron.errors import described, http_error, refusal
from hotplate.cloud.neutron.listing import chosen, listed
from hotplate.cloud.neutron.networking import Networking
from hotplate.cloud.neutron.quotas import DEFAULTS
from hotplate.cloud.neutron.records import Values

#: Neutron: ``MAX_TAGS_COUNT`` and ``MAX_TAG_LEN`` of its tagging extension.
MAX_TAGS = 50
MAX_TAG_LENGTH = 255
#: Maximum number of resources that one request may create.
MAX_BULK = 100


class NeutronApi:
    """Neutron's WSGI application."""

    def __init__(self, networking: Networking, identity: Identity) -> None:
        self._networking = networking
        self._identity = identity
        routers, trunks, quotas = networking.routers, networking.trunks, networking.quotas
        router, trunk = "/v2.0/routers/{id}/", "/v2.0/trunks/{id}/"
        quota = "/v2.0/quotas/{project}"
        act = partial(self._action, KINDS["routers"])
        act_on_trunk, read = partial(self._action, KINDS["trunks"]), self._quota
        self._routes: Routes[Grant] = Routes(
            ("PUT", router + "add_router_interface", partial(act, routers.add_interface)),
            ("PUT", router + "remove_router_interface", partial(act, routers.remove_interface)),
            ("PUT", router + "add_extraroutes", partial(act, routers.add_routes)),
            ("PUT", router + "remove_extraroutes", partial(act, routers.remove_routes)),
            ("PUT", trunk + "add_subports", partial(act_on_trunk, trunks.add_subports)),
            ("PUT", trunk + "remove_subports", partial(act_on_trunk, trunks.remove_subports)),
            ("GET", trunk + "get_subports", self._subports),
            ("GET", "/v2.0/quotas", partial(_refuse, "get_quota")),
            ("GET", quota, partial(read, lambda _: DEFAULTS)),
            ("GET", quota + "/default", partial(read, lambda _: DEFAULTS)),
            ("GET", quota + "/details", partial(read, quotas.details)),
            # python-neutronclient asks for this one.
            ("GET", quota + "/details.json", partial(read, quotas.details)),
            ("PUT", quota, partial(_refuse, "update_quota")),
            ("DELETE", quota, partial(_refuse, "delete_quota")),
            ("GET", "/v2.0", self._root),
            # Agents are an administrator's to see: a list has none.
            ("GET", "/v2.0/agents", lambda *_: Answer(body={"agents": []})),
            ("GET", "/v2.0/availability_zones", self._zones),
            ("GET", "/v2.0/extensions", self._extensions),
            ("GET", "/v2.0/extensions/{alias}", self._extension),
            ("GET", "/v2.0/auto-allocated-topology/{project}", self._auto_allocated),
        )
        for kind in KINDS.values():
            self._add_kind(kind)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        return respond(environ, start_response, self._answer, describe=_describe)

    def _answer(self, request: Request) -> Answer:
        if not request.path and request.method in ("GET", "HEAD"):
            return Answer(body={"versions": [_version(self._base)]}, identified=False)
        caller = admit(request, self._identity)
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
        return self._identity.host["neutron"]

    # -- common to all kinds --------------------

    def _add_kind(self, kind: ResourceKind) -> None:
        collection = f"/v2.0/{kind.path}"
        one = collection + "/{id}"

        for methods, path, handler in (
            ("GET", collection, self._list),
            ("POST", collection, self._create),
            ("GET", one, self._show),
            ("PUT", one, self._change),
            ("DELETE", one, self._delete),
            ("GET PUT POST DELETE", one + "/tags", self._tags),
            ("GET PUT DELETE", one + "/tags/{tag}", self._tag),
        ):
            self._routes.add(methods, path, partial(handler, kind))

    def _list(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        # As in Neutron, the first look at the groups creates the default one.
        if kind.name == "security_groups":
            with self._networking.transaction():
                self._networking.groups.default(caller.project)
        everything = self._networking.all(kind.name)
        visible = [
            policy.seen(kind, record)
            for record in everything
            if self._visible(kind, record, caller)
        ]
        return Answer(body=listed(kind, visible, request, f"{self._base}{request.path}"))

    def _create(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        body = request.json()
        # The plural in a body creates several, or none of them.
        if kind.name in body:
            return self._create_many(kind, body[kind.name], caller)
        made = self._made(kind, inside(body, kind.single), caller)
        return Answer(201, {kind.single: made})

    def _made(self, kind: ResourceKind, body: Values, caller: Grant) -> Values:
        owner = body.get("project_id", body.get("tenant_id")) or caller.project
        if owner != caller.project:
            raise exc.HTTPBadRequest(
                "Specifying 'project_id' or 'tenant_id' other than the authenticated project in "
                "request requires admin privileges"
            )
        values = kind.new(body, caller.project)
        policy.check_create(kind, values, caller, self._network_of(kind, values))
        made = self._networking.create(kind.name, body, caller.project)
        return policy.seen(kind, made)

    def _network_of(self, kind: ResourceKind, record: Values) -> Values | None:
        if kind.name not in ("ports", "subnets"):
            return None
        return self._networking.records.get("networks", str(record.get("network_id")))

    def _create_many(self, kind: ResourceKind, bodies: object, caller: Grant) -> Answer:
        if not isinstance(bodies, list) or not 0 < len(bodies) <= MAX_BULK:
            raise exc.HTTPBadRequest(f"{kind.name} must be a list of 1 to {MAX_BULK} resources")
        with self._networking.transaction():
            made = [self._made(kind, body_object(body), caller) for body in bodies]
        return Answer(201, {kind.name: made})

    def _show(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        record = policy.seen(kind, self._mine(kind, request, caller))
        fields = set(request.query.get("fields", []))
        return Answer(body={kind.single: chosen(record, fields)})

    def _change(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        record = self._mine(kind, request, caller)
        body = inside(request.json(), kind.single)
        changes = kind.changes(body)
        policy.check_change(kind, changes, caller, record, self._network_of(kind, record))
        changed = self._networking.change(kind.name, record["id"], body)
        return Answer(body={kind.single: policy.seen(kind, changed)})

    def _delete(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        record = self._mine(kind, request, caller)
        policy.check_owner("delete", kind, record, caller, self._network_of(kind, record))
        self._networking.delete(kind.name, record["id"])
        return Answer(204)

    def _mine(self, kind: ResourceKind, request: Request, caller: Grant) -> Values:
        """Return the resource of a path, if the caller may see it."""
        record = self._networking.get(kind.name, request.parts["id"])
        if not self._visible(kind, record, caller):
            raise self._networking.kinds[kind.name].missing(request.parts["id"])
        return record

    def _visible(self, kind: ResourceKind, record: Values, caller: Grant) -> bool:
        """Return True for a resource of the caller's, on such a network, or offered to all."""
        if record["project_id"] == caller.project:
            return True
        network = self._network_of(kind, record) or {}
        if kind.name == "subnets":
            return bool(network.get("shared"))
        owned = network.get("project_id") == caller.project
        return owned or bool(record.get("shared") or record.get("router:external"))

    # -- tags --------------------

    def _tags(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        """Show, replace, extend or clear the tags of a resource."""
        tags = self._mine(kind, request, caller)["tags"]
        if request.method == "GET":
            return Answer(body={"tags": tags})
        if request.method == "DELETE":
            self._keep_tags(kind, request, [])
            return Answer(204)
        given = request.json().get("tags")
        added = tags if request.method == "POST" else []
        return Answer(body={"tags": self._keep_tags(kind, request, given, added)})

    def _tag(self, kind: ResourceKind, request: Request, caller: Grant) -> Answer:
        """Look up, add or remove one tag of a resource."""
        tags, tag = self._mine(kind, request, caller)["tags"], request.parts["tag"]
        if request.method == "PUT":
            self._keep_tags(kind, request, [tag], tags)
            return Answer(201)
        if tag not in tags:
            raise refusal(404, "TagNotFound", f"Tag {tag} could not be found.")
        if request.method == "DELETE":
            self._keep_tags(kind, request, [each for each in tags if each != tag])
        return Answer(204)

    def _keep_tags(
        self, kind: ResourceKind, request: Request, given: object, others: Sequence[str] = ()
    ) -> list[str]:
        """Set the tags of a resource: those of a request, after a check, and others."""
        if not isinstance(given, list) or not all(
            isinstance(tag, str) and 0 < len(tag) <= MAX_TAG_LENGTH for tag in given
        ):
            raise exc.HTTPBadRequest(
                f"Invalid input for tags. Reason: it is no list of texts of 1 to {MAX_TAG_LENGTH}."
            )
        tags = sorted({*given, *others})
        if len(tags) > MAX_TAGS:
            raise exc.HTTPBadRequest(f"A resource has {MAX_TAGS} tags at most")
        with self._networking.transaction():
            kept = self._networking.kinds[kind.name].get(request.parts["id"])
            self._networking.records.change(kind.name, kept, {"tags": tags})
        return tags

    # -- routers and trunks --------------------

    def _action(
        self,
        kind: ResourceKind,
        act: Callable[[Values, Values], Values],
        request: Request,
        caller: Grant,
    ) -> Answer:
        self._mine(kind, request, caller)
        body = request.json()
        with self._networking.transaction():
            record = self._networking.kinds[kind.name].get(request.parts["id"])
            return Answer(body=act(record, body))

    def _subports(self, request: Request, caller: Grant) -> Answer:
        trunk = self._mine(KINDS["trunks"], request, caller)
        return Answer(body={"sub_ports": trunk["sub_ports"]})

    # -- quotas --------------------

    def _quota(self, read: Callable[[str], object], request: Request, caller: Grant) -> Answer:
        return Answer(body={"quota": read(_project(request, caller, "get_quota"))})

    # -- extensions and versions --------------------

    def _root(self, _request: Request, _caller: Grant) -> Answer:
        links = [
            {
                "name": kind.single,
                "collection": kind.name,
                "links": [{"rel": "self", "href": f"{self._base}/v2.0/{kind.path}"}],
            }
            for kind in KINDS.values()
        ]
        return Answer(body={"resources": links})

    def _extensions(self, _request: Request, _caller: Grant) -> Answer:
        return Answer(body={"extensions": extensions()})

    def _extension(self, request: Request, _caller: Grant) -> Answer:
        alias = request.parts["alias"]
        for extension in extensions():
            if extension["alias"] == alias:
                return Answer(body={"extension": extension})
        raise exceptions.ExtensionsNotFound(extensions=[alias])

    def _zones(self, _request: Request, _caller: Grant) -> Answer:
        zone = {"state": "available", "name": "nova"}
        zones = [{**zone, "resource": resource} for resource in ("router", "network")]
        return Answer(body={"availability_zones": zones})

    def _auto_allocated(self, request: Request, caller: Grant) -> Answer:
        project = _project(request, caller, "get_auto_allocated_topology")
        topology = {"id": self._networking.default_network, "tenant_id": project}
        return Answer(body={"auto_allocated_topology": topology})


def _describe(error: HttpError) -> object:
    return described(error.kind or _KINDS.get(error.status, "HTTPException"), str(error))


#: Status -> type of the errors for which Neutron has no name of its own.
_KINDS = {400: "HTTPBadRequest", 403: "PolicyNotAuthorized", 404: "HTTPNotFound"}


def _version(base: str) -> Values:
    return {
        "id": "v2.0",
        "status": "CURRENT",
        "links": [{"rel": "self", "href": f"{base}/v2.0/"}],
    }


def _project(request: Request, caller: Grant, rule: str) -> str:
    """Return the project of a path, which has to be the caller's own."""
    if request.parts["project"] != caller.project:
        raise policy.disallowed(f"rule:{rule}")
    return caller.project


def _refuse(rule: str, _request: Request, _caller: Grant) -> Answer:
    raise policy.disallowed(f"rule:{rule}")
