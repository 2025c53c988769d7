"""Keystone's v3 API over HTTP: the part that guests and command-line clients use."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from hotplate.cloud.http.addresses import Side, guest_base
from hotplate.cloud.http.gateway import SIDE, WSGIApp
from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes, respond
from hotplate.cloud.keystone.identity import Grant, Identity, IdentityError, User


class KeystoneApi:
    """Keystone's WSGI application.

    :param signature_ttl: as :attr:`~hotplate.cloud.options.CloudOptions.signature_ttl`.
    """

    def __init__(self, identity: Identity, *, signature_ttl: int) -> None:
        self._identity = identity
        self._ttl = signature_ttl
        self._routes: Routes[Side] = Routes()
        for methods, path, handler in (
            ("GET HEAD", "", self._versions),
            ("GET HEAD", "/v3", self._version),
            ("POST", "/v3/auth/tokens", self._issue),
            ("GET HEAD", "/v3/auth/tokens", self._validate),
            ("DELETE", "/v3/auth/tokens", self._revoke),
            ("POST", "/v3/ec2tokens", self._ec2tokens),
            ("POST", "/v2.0/ec2tokens", self._ec2tokens),
            ("GET", "/v3/auth/catalog", self._catalog),
            ("GET", "/v3/auth/projects", self._projects),
            ("GET", "/v3/projects", self._projects),
            ("GET", "/v3/projects/{project}", self._project),
            ("GET", "/v3/users/{user}", self._user),
            ("GET", "/v3/users/{user}/projects", self._projects),
            ("GET", "/v3/services", self._services),
            ("GET", "/v3/endpoints", self._endpoints),
        ):
            for method in methods.split():
                self._routes.add(method, path, handler)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        # As Keystone: a cache must not give one caller's answer to another.
        vary = (("Vary", "X-Auth-Token"),)
        return respond(environ, start_response, self._answer, describe=_described, headers=vary)

    def _answer(self, request: Request) -> Answer:
        side: Side = request.environ[SIDE]
        try:
            return self._routes.answer(request, side)
        except IdentityError as error:
            challenge = f'Keystone uri="{self._base(side)}/v3"'
            headers = (("WWW-Authenticate", challenge),)
            raise HttpError(401, str(error), headers=headers) from error

    def _base(self, side: Side) -> str:
        if side is Side.GUEST:
            return guest_base("keystone")
        return self._identity.addresses.host["keystone"]

    def _versions(self, _request: Request, side: Side) -> Answer:
        # As Keystone's root: 300 Multiple Choices.
        return Answer(300, {"versions": {"values": [_version(self._base(side))]}})

    def _version(self, _request: Request, side: Side) -> Answer:
        return Answer(body={"version": _version(self._base(side))})

    # -- tokens --------------------

    def _issue(self, request: Request, side: Side) -> Answer:
        grant = self._authenticate(request.json())
        # The parameter has no value; its presence counts.
        catalog = "nocatalog" not in request.query
        body = self._identity.describe(grant, side, catalog=catalog)
        return Answer(201, body, _subject(self._identity.token(grant)))

    def _validate(self, request: Request, side: Side) -> Answer:
        self._caller(request)
        token = request.header("X-Subject-Token")
        try:
            grant = self._identity.read_token(token)
        except IdentityError as error:
            # A bad subject token is 404; 401 is about the caller's own token.
            raise HttpError(404, str(error)) from error
        return Answer(200, self._identity.describe(grant, side), _subject(token))

    def _revoke(self, request: Request, _side: Side) -> Answer:
        self._caller(request)
        try:
            self._identity.revoke(request.header("X-Subject-Token"))
        except IdentityError as error:
            raise HttpError(404, str(error)) from error
        return Answer(204)

    def _authenticate(self, body: dict[str, Any]) -> Grant:
        auth = body.get("auth")
        if not isinstance(auth, dict) or not isinstance(auth.get("identity"), dict):
            raise HttpError(400, "'auth' is a required property")
        identity = auth["identity"]
        methods = identity.get("methods") or []
        scope = auth.get("scope") or {}
        # The user, by a password or by another token.
        if "password" in methods:
            user = self._password(identity.get("password") or {})
            method = "password"
        elif "token" in methods:
            user = self._identity.read_token(str((identity.get("token") or {}).get("id", ""))).user
            method = "token"
        else:
            raise IdentityError
        if not isinstance(scope, dict):
            # "unscoped"; a user has one project, so it is used.
            scope = {}
        # The scope: a trust, or a project by its id or name.
        trust = (scope.get("OS-TRUST:trust") or {}).get("id", "")
        project = scope.get("project") or {}
        project_id = project.get("id", "")
        if not project_id and project.get("name"):
            project_id = self._identity.find_project(project["name"])
        return self._identity.grant(user, project_id, method=method, trust=trust)

    def _password(self, password: dict[str, Any]) -> User:
        given = password.get("user") or {}
        if given.get("id"):
            user = self._identity.user(str(given["id"]))
        else:
            user = self._identity.find_user(str(given.get("name", "")))
        return self._identity.check_password(user, str(given.get("password", "")))

    def _ec2tokens(self, request: Request, side: Side) -> Answer:
        # OSSA-2025-002: only a service may ask whether a signature is valid.
        if not {"service", "admin"} & set(self._caller(request).roles):
            raise HttpError(
                403, "You are not authorized to perform the requested action: identity:ec2tokens."
            )
        body = request.json()
        # Heat's EC2Token posts the second name.
        credentials = body.get("credentials") or body.get("ec2Credentials")
        if not isinstance(credentials, dict):
            raise HttpError(400, "credentials is a required property")
        grant = self._identity.check_ec2(credentials, ttl=self._ttl)
        body = self._identity.describe(grant, side)
        return Answer(200, body, _subject(self._identity.token(grant)))

    def _caller(self, request: Request) -> Grant:
        try:
            return self._identity.read_token(request.header("X-Auth-Token"))
        except IdentityError:
            # Keystone does not say why the caller's own token is refused.
            raise IdentityError from None

    # -- look-ups of command-line clients --------------------

    def _entries(self, request: Request, side: Side) -> list[dict[str, Any]]:
        return self._identity.catalog(self._caller(request).project, side)

    def _catalog(self, request: Request, side: Side) -> Answer:
        return Answer(body={"catalog": self._entries(request, side)})

    def _services(self, request: Request, side: Side) -> Answer:
        shown = ("id", "name", "type")
        services = [
            {**{name: entry[name] for name in shown}, "enabled": True}
            for entry in self._entries(request, side)
        ]
        return Answer(body={"services": services})

    def _endpoints(self, request: Request, side: Side) -> Answer:
        endpoints = [
            {**endpoint, "service_id": entry["id"], "enabled": True}
            for entry in self._entries(request, side)
            for endpoint in entry["endpoints"]
        ]
        return Answer(body={"endpoints": endpoints})

    def _projects(self, request: Request, _side: Side) -> Answer:
        """List the projects of the caller, of which there is one."""
        caller = self._caller(request)
        project = self._own_project(caller)
        is_own = request.parts.get("user", caller.user.id) == caller.user.id
        if not is_own:
            raise _not_found()
        chosen = request.one("name", project["name"]) == project["name"]
        return Answer(body={"projects": [project] if chosen else []})

    def _project(self, request: Request, _side: Side) -> Answer:
        caller = self._caller(request)
        if request.part("project") != caller.project:
            raise _not_found()
        return Answer(body={"project": self._own_project(caller)})

    def _own_project(self, caller: Grant) -> dict[str, Any]:
        return {
            "id": caller.project,
            "name": self._identity.project_name(caller.project),
            "domain_id": caller.user.domain,
            "enabled": True,
            "is_domain": False,
        }

    def _user(self, request: Request, _side: Side) -> Answer:
        user = self._caller(request).user
        if request.part("user") != user.id:
            raise _not_found()
        shown = {"id": user.id, "name": user.name, "domain_id": user.domain, "enabled": True}
        return Answer(body={"user": shown})


def app(identity: Identity, *, signature_ttl: int) -> WSGIApp:
    """Return Keystone as a WSGI application."""
    return KeystoneApi(identity, signature_ttl=signature_ttl)


def _subject(token: str) -> tuple[tuple[str, str]]:
    return (("X-Subject-Token", token),)


def _not_found() -> HttpError:
    return HttpError(404, "The resource could not be found.")


def _version(base: str) -> dict[str, object]:
    return {
        "id": "v3.14",
        "status": "stable",
        "updated": "2020-04-07T00:00:00Z",
        "links": [{"rel": "self", "href": f"{base}/v3/"}],
        "media-types": [
            {"base": "application/json", "type": "application/vnd.openstack.identity-v3+json"}
        ],
    }


def _described(error: HttpError) -> dict[str, object]:
    """Return an error in Keystone's form."""
    title = HTTPStatus(error.status).phrase
    return {"error": {"code": error.status, "message": str(error), "title": title}}
