"""Keystone's v3 API over HTTP: the part that guests and command-line clients use."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIEnvironment

from hotplate.cloud.http.addresses import Side, guest_base
from hotplate.cloud.http.gateway import SIDE, WSGIApp
from hotplate.cloud.keystone.identity import Grant, Identity, IdentityError, User

_UNAUTHORIZED = "The request you have made requires authentication."


class _KeystoneHttpError(Exception):
    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status


class KeystoneApi:
    """Keystone's WSGI application.

    :param signature_ttl: as :attr:`~hotplate.cloud.options.CloudOptions.signature_ttl`.
    """

    def __init__(self, identity: Identity, *, signature_ttl: int) -> None:
        self._identity = identity
        self._ttl = signature_ttl

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        headers: list[tuple[str, str]] = []
        try:
            status, body = self._answer(environ, headers)
        except IdentityError as error:
            status, body = _error("401 Unauthorized", str(error))
            headers.append(("WWW-Authenticate", f'Keystone uri="{self._base(environ)}/v3"'))
        except _KeystoneHttpError as error:
            status, body = _error(error.status, str(error))
        payload = json.dumps(body).encode() if body is not None else b""
        headers += [
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(payload))),
            ("Vary", "X-Auth-Token"),
        ]
        start_response(status, headers)
        return [payload]

    def _base(self, environ: WSGIEnvironment) -> str:
        side: Side = environ[SIDE]
        if side is Side.GUEST:
            return guest_base("keystone")
        return self._identity.addresses.host["keystone"]

    def _answer(
        self, environ: WSGIEnvironment, headers: list[tuple[str, str]]
    ) -> tuple[str, object]:
        method = environ["REQUEST_METHOD"]
        path = environ.get("PATH_INFO", "/").rstrip("/")
        if method in ("GET", "HEAD"):
            if path == "":
                return "300 Multiple Choices", {
                    "versions": {"values": [_version(self._base(environ))]}
                }
            if path == "/v3":
                return "200 OK", {"version": _version(self._base(environ))}
        if path == "/v3/auth/tokens":
            return self._tokens(environ, method, headers)
        if path in ("/v3/ec2tokens", "/v2.0/ec2tokens") and method == "POST":
            return self._ec2tokens(environ, headers)
        if method == "GET" and path.startswith("/v3/"):
            return self._resource(environ, path)
        raise _KeystoneHttpError("404 Not Found", "The resource could not be found.")

    # -- tokens --------------------

    def _tokens(
        self, environ: WSGIEnvironment, method: str, headers: list[tuple[str, str]]
    ) -> tuple[str, object]:
        side: Side = environ[SIDE]
        if method == "POST":
            body = _read_json(environ)
            grant = self._authenticate(body)
            headers.append(("X-Subject-Token", self._identity.token(grant)))
            catalog = "nocatalog" not in environ.get("QUERY_STRING", "")
            return "201 Created", self._identity.describe(grant, side, catalog=catalog)
        self._caller(environ)
        subject = environ.get("HTTP_X_SUBJECT_TOKEN", "")
        if method in ("GET", "HEAD"):
            try:
                grant = self._identity.read_token(subject)
            except IdentityError as error:
                raise _KeystoneHttpError("404 Not Found", f"{error}") from error
            headers.append(("X-Subject-Token", subject))
            return "200 OK", self._identity.describe(grant, side)
        if method == "DELETE":
            try:
                self._identity.revoke(subject)
            except IdentityError as error:
                raise _KeystoneHttpError("404 Not Found", f"{error}") from error
            return "204 No Content", None
        raise _KeystoneHttpError("405 Method Not Allowed", "The method is not allowed.")

    def _authenticate(self, body: dict[str, object]) -> Grant:
        auth = body.get("auth")
        if not isinstance(auth, dict) or not isinstance(auth.get("identity"), dict):
            raise _KeystoneHttpError("400 Bad Request", "'auth' is a required property")
        identity = auth["identity"]
        methods = identity.get("methods") or []
        scope = auth.get("scope") or {}
        if "password" in methods:
            user = self._password(identity.get("password") or {})
            method = "password"
        elif "token" in methods:
            user = self._identity.read_token(str((identity.get("token") or {}).get("id", ""))).user
            method = "token"
        else:
            raise IdentityError(_UNAUTHORIZED)
        if not isinstance(scope, dict):
            # "unscoped"; a user has one project, so it is used.
            scope = {}
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

    def _ec2tokens(
        self, environ: WSGIEnvironment, headers: list[tuple[str, str]]
    ) -> tuple[str, object]:
        # OSSA-2025-002: only a service may ask whether a signature is valid.
        caller = self._caller(environ)
        if not {"service", "admin"} & set(caller.roles):
            raise _KeystoneHttpError(
                "403 Forbidden",
                "You are not authorized to perform the requested action: identity:ec2tokens.",
            )
        body = _read_json(environ)
        credentials = body.get("credentials") or body.get("ec2Credentials")
        if not isinstance(credentials, dict):
            raise _KeystoneHttpError("400 Bad Request", "credentials is a required property")
        grant = self._identity.check_ec2(credentials, ttl=self._ttl)
        headers.append(("X-Subject-Token", self._identity.token(grant)))
        return "200 OK", self._identity.describe(grant, environ[SIDE])

    def _caller(self, environ: WSGIEnvironment) -> Grant:
        token = environ.get("HTTP_X_AUTH_TOKEN", "")
        if not token:
            raise IdentityError(_UNAUTHORIZED)
        try:
            return self._identity.read_token(token)
        except IdentityError:
            raise IdentityError(_UNAUTHORIZED) from None

    # -- look-ups of command-line clients --------------------

    def _resource(self, environ: WSGIEnvironment, path: str) -> tuple[str, Any]:
        caller = self._caller(environ)
        side: Side = environ[SIDE]
        catalog = self._identity.catalog(caller.project, side)
        project = {
            "id": caller.project,
            "name": self._identity.project_name(caller.project),
            "domain_id": caller.user.domain,
            "enabled": True,
            "is_domain": False,
        }
        if path == "/v3/auth/catalog":
            return "200 OK", {"catalog": catalog}
        if path in ("/v3/auth/projects", f"/v3/users/{caller.user.id}/projects"):
            return "200 OK", {"projects": [project]}
        if path == "/v3/projects":
            name = parse_qs(environ.get("QUERY_STRING", "")).get("name", [project["name"]])[0]
            return "200 OK", {"projects": [project] if name == project["name"] else []}
        if path == f"/v3/projects/{caller.project}":
            return "200 OK", {"project": project}
        if path == f"/v3/users/{caller.user.id}":
            user = {
                "id": caller.user.id,
                "name": caller.user.name,
                "domain_id": caller.user.domain,
                "enabled": True,
            }
            return "200 OK", {"user": user}
        if path == "/v3/services":
            return "200 OK", {
                "services": [
                    {
                        "id": entry["id"],
                        "name": entry["name"],
                        "type": entry["type"],
                        "enabled": True,
                    }
                    for entry in catalog
                ]
            }
        if path == "/v3/endpoints":
            return "200 OK", {
                "endpoints": [
                    {**endpoint, "service_id": entry["id"], "enabled": True}
                    for entry in catalog
                    for endpoint in entry["endpoints"]
                ]
            }
        raise _KeystoneHttpError("404 Not Found", "The resource could not be found.")


def app(identity: Identity, *, signature_ttl: int) -> WSGIApp:
    """Return Keystone as a WSGI application."""
    return KeystoneApi(identity, signature_ttl=signature_ttl)


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


def _error(status: str, message: str) -> tuple[str, dict[str, object]]:
    code, _, title = status.partition(" ")
    return status, {"error": {"code": int(code), "message": message, "title": title}}


def _read_json(environ: WSGIEnvironment) -> dict[str, object]:
    raw = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise _KeystoneHttpError("400 Bad Request", "The request body is not a JSON object.")
    return body
