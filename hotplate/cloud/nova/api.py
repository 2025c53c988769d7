"""Nova's API v2.1 over HTTP: the part that the clients, the SDK and Heat's plug-ins use.

It listens for clients on the host only; guests cannot reach it.
"""

from __future__ import annotations

from dataclasses import replace
from wsgiref.types import StartResponse, WSGIEnvironment

from hotplate.cloud.database.store import Store
from hotplate.cloud.http.rest import (
    REQUEST_ID,
    Answer,
    Headers,
    HttpError,
    Request,
    Routes,
    request_id,
    respond,
)
from hotplate.cloud.keystone.guard import admit
from hotplate.cloud.keystone.identity import Identity
from hotplate.cloud.nova import (
    capacity,
    groups,
    instance_actions,
    keypairs,
    microversions,
    policy,
    server_actions,
    server_changes,
    server_create,
    servers_api,
)
from hotplate.cloud.nova.microversions import Caller
from hotplate.cloud.nova.servers import Servers

#: Nova's name for an HTTP status (``nova/api/openstack/wsgi.py``); others are ``computeFault``.
FAULTS = {
    400: "badRequest",
    401: "unauthorized",
    403: "forbidden",
    404: "itemNotFound",
    405: "badMethod",
    409: "conflictingRequest",
    413: "overLimit",
    429: "overLimit",
    501: "notImplemented",
}


ROUTES: Routes[Caller] = Routes(
    # First: some of its paths match those of others.
    *policy.ROUTES,
    *servers_api.ROUTES,
    *server_create.ROUTES,
    *server_changes.ROUTES,
    *server_actions.ROUTES,
    *instance_actions.ROUTES,
    *keypairs.ROUTES,
    *groups.ROUTES,
    *capacity.ROUTES,
)


class NovaApi:
    """Nova's WSGI application."""

    def __init__(self, servers: Servers, identity: Identity, store: Store) -> None:
        self._servers = servers
        self._identity = identity
        self._store = store

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        return respond(environ, start_response, self._answer, describe=_fault)

    @property
    def _base(self) -> str:
        return self._identity.host["nova"] + "/v2.1"

    def _answer(self, request: Request) -> Answer:
        this = request_id()
        headers: Headers = ((REQUEST_ID, this), ("x-compute-request-id", this))
        try:
            if not request.path and request.method == "GET":
                return self._versions(request)
            if request.path == "/v2.1" and request.method == "GET":
                minor = microversions.asked_for(request)
                headers = (*headers, *microversions.headers(f"2.{minor}"))
                answer = self._versions(request)
            else:
                grant = admit(request, self._identity)
                minor = microversions.asked_for(request)
                headers = (*headers, *microversions.headers(f"2.{minor}"))
                caller = Caller(grant, minor, self._base, this, self._servers, self._store)
                answer = ROUTES.answer(_below_version(request, grant.project), caller)
        except HttpError as error:
            # An error names its version and request id, too.
            error.headers += headers
            if error.status != 401:
                # Nova's Fault sets the type, and WebOb its usual set of characters.
                error.headers += (("Content-Type", "application/json; charset=UTF-8"),)
            raise
        if answer.body is None:
            headers = (*headers, ("Content-Type", "application/json"))
        return replace(answer, headers=(*answer.headers, *headers))

    def _versions(self, request: Request) -> Answer:
        document = microversions.document(self._base)
        if request.path:
            return Answer(body={"version": document})
        del document["media-types"]
        # The root has no link to the documentation (``nova/api/openstack/compute/views/versions``).
        document["links"] = document["links"][:1]
        return Answer(body={"versions": [document]}, identified=False)


def _below_version(request: Request, project: str) -> Request:
    """Return the request with its path below ``/v2.1`` and, if present, below the project."""
    if not request.path.startswith("/v2.1/"):
        raise HttpError(404, "The resource could not be found.")
    path = request.path.removeprefix("/v2.1")
    # Nova allows the project's id behind the version, as its older API had it.
    return replace(request, path=path.removeprefix(f"/{project}"))


def _fault(error: HttpError) -> dict[str, object]:
    name = FAULTS.get(error.status, "computeFault")
    return {name: {"code": error.status, "message": str(error)}}
