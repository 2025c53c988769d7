"""Keystone's v3 API over HTTP: the part that guests and command-line clients use."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from hotplate.cloud.http.addresses import REGION, Side
from hotplate.cloud.http.gateway import SIDE
from hotplate.cloud.http.rest import Answer, HttpError, Request, Routes, respond
from hotplate.cloud.keystone.application_credentials import (
    MAX_CREDENTIALS,
    ApplicationCredential,
)
from hotplate.cloud.keystone.identity import (
    DOMAINS,
    AccessKey,
    Grant,
    Identity,
    IdentityError,
    User,
)

#: Keystone does not page.
_NO_PAGES = {"next": None, "previous": None}


class KeystoneApi:
    """Keystone's WSGI application."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        own = "/v3/users/{user}"
        self._routes: Routes[Side] = Routes(
            ("GET HEAD", "", self._versions),
            ("GET HEAD", "/v3", self._version),
            ("POST", "/v3/auth/tokens", self._issue),
            ("GET HEAD", "/v3/auth/tokens", self._validate),
            ("DELETE", "/v3/auth/tokens", self._revoke),
            ("GET", "/v3/auth/catalog", self._catalog),
            ("GET", "/v3/auth/projects", self._projects),
            ("GET", "/v3/auth/domains", partial(self._empty, "domains")),
            ("GET", "/v3/auth/system", self._no_system),
            ("GET", "/v3/projects/{project}", self._project),
            ("GET", "/v3/domains/{domain}", self._domain),
            ("GET", "/v3/regions", self._regions),
            ("GET", "/v3/regions/{region}", self._region),
            ("GET", own, self._user),
            ("GET", own + "/projects", partial(self._projects, rule="list_user_projects")),
            ("GET", own + "/groups", partial(self._empty, "groups", rule="list_groups_for_user")),
            ("GET", own + "/access_rules", partial(self._empty, "access_rules")),
            ("POST", own + "/password", self._refuse_password),
            ("GET", own + "/credentials/OS-EC2", self._keys),
            ("POST", own + "/credentials/OS-EC2", self._create_key),
            ("GET", own + "/credentials/OS-EC2/{access}", self._key),
            ("DELETE", own + "/credentials/OS-EC2/{access}", self._delete_key),
            ("GET", own + "/application_credentials", self._applications),
            ("POST", own + "/application_credentials", self._create_application),
            ("GET", own + "/application_credentials/{id}", self._application),
            ("DELETE", own + "/application_credentials/{id}", self._delete_application),
            *((method, path, partial(self._forbid, rule)) for method, path, rule in _admins()),
        )

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
        return self._identity.base("keystone", side)

    def _versions(self, _request: Request, side: Side) -> Answer:
        # As Keystone's root: 300 Multiple Choices.
        base = self._base(side)
        where = (("Location", f"{base}/v3/"),)
        return Answer(300, {"versions": {"values": [_version(base)]}}, where)

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
            given = self._identity.read_token(str((identity.get("token") or {}).get("id", "")))
            if given.application:
                # It stays what it is: no new scope, no more roles.
                return replace(given, methods=tuple({"token": "", **dict.fromkeys(given.methods)}))
            user, method = given.user, "token"
        elif "application_credential" in methods:
            if scope:
                raise IdentityError("Application credentials cannot request a scope.")
            return self._by_application(identity.get("application_credential") or {})
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
        return self._identity.check_password(self._named(given), str(given.get("password", "")))

    def _named(self, user: dict[str, Any]) -> User | None:
        """Return the user that a request names, by the id or the name."""
        if user.get("id"):
            return self._identity.user(str(user["id"]))
        return self._identity.find_user(str(user.get("name", "")))

    def _by_application(self, given: dict[str, Any]) -> Grant:
        credentials = self._identity.applications
        found = credentials.get(str(given.get("id") or ""))
        if given.get("name"):
            # A name is a user's own.
            owner = self._named(given.get("user") or {})
            those = credentials.of(owner.id) if owner else []
            found = next((each for each in those if each.name == given["name"]), None)
        return self._identity.grant_by_application(found, str(given.get("secret", "")))

    def _caller(self, request: Request) -> Grant:
        try:
            return self._identity.read_token(request.header("X-Auth-Token"))
        except IdentityError:
            # Keystone does not say why the caller's own token is refused.
            raise IdentityError from None

    # -- look-ups of command-line clients --------------------

    def _catalog(self, request: Request, side: Side) -> Answer:
        links = {"self": f"{self._base(side)}/v3/auth/catalog"}
        entries = self._identity.catalog(self._caller(request).project, side)
        return Answer(body={"catalog": entries, "links": links})

    def _projects(self, request: Request, side: Side, rule: str = "") -> Answer:
        """List the projects of the caller, of which there is one."""
        project = self._own_project(self._self(request, rule), side)
        chosen = request.one("name", project["name"]) == project["name"]
        return self._list(request, side, "projects", [project] if chosen else [])

    def _project(self, request: Request, side: Side) -> Answer:
        caller = self._caller(request)
        if request.parts["project"] != caller.project:
            raise _forbidden("get_project")
        return Answer(body={"project": self._own_project(caller, side)})

    def _own_project(self, caller: Grant, side: Side) -> dict[str, Any]:
        return {
            "id": caller.project,
            "name": self._identity.project_name(caller.project),
            "description": "",
            "domain_id": caller.user.domain,
            "parent_id": caller.user.domain,
            "enabled": True,
            "is_domain": False,
            "tags": [],
            "options": {},
            "links": self._links(side, f"/projects/{caller.project}"),
        }

    def _domain(self, request: Request, side: Side) -> Answer:
        domain = self._caller(request).user.domain
        if request.parts["domain"] != domain:
            raise _forbidden("get_domain")
        shown = {
            "id": domain,
            "name": DOMAINS[domain],
            "description": "",
            "enabled": True,
            "tags": [],
            "options": {},
            "links": self._links(side, f"/domains/{domain}"),
        }
        return Answer(body={"domain": shown})

    def _regions(self, request: Request, side: Side) -> Answer:
        self._caller(request)
        return self._list(request, side, "regions", [self._only_region(side)])

    def _region(self, request: Request, side: Side) -> Answer:
        self._caller(request)
        if request.parts["region"] != REGION:
            raise HttpError(404, f"Could not find region: {request.parts['region']}.")
        return Answer(body={"region": self._only_region(side)})

    def _only_region(self, side: Side) -> dict[str, Any]:
        links = self._links(side, f"/regions/{REGION}")
        return {"id": REGION, "description": "", "parent_region_id": None, "links": links}

    def _user(self, request: Request, side: Side) -> Answer:
        user = self._self(request, "get_user").user
        shown = {
            "id": user.id,
            "name": user.name,
            "domain_id": user.domain,
            "default_project_id": user.project,
            "enabled": True,
            "password_expires_at": None,
            "options": {},
            "links": self._links(side, f"/users/{user.id}"),
        }
        return Answer(body={"user": shown})

    def _self(self, request: Request, rule: str) -> Grant:
        """Return the caller, who has to be the user of the path if there is one.

        :param rule: the policy that refuses others, without ``identity:``.
        """
        caller = self._caller(request)
        if request.parts.get("user", caller.user.id) != caller.user.id:
            raise _forbidden(rule)
        return caller

    def _empty(
        self, name: str, request: Request, side: Side, rule: str = "list_access_rules"
    ) -> Answer:
        """List resources of the caller of which there are none."""
        self._self(request, rule)
        return self._list(request, side, name, [])

    def _no_system(self, request: Request, side: Side) -> Answer:
        self._caller(request)
        return Answer(body={"system": [], "links": self._links(side, "/auth/system")})

    def _forbid(self, rule: str, request: Request, _side: Side) -> Answer:
        self._caller(request)
        raise _forbidden(rule)

    def _list(self, request: Request, side: Side, name: str, items: list[Any]) -> Answer:
        links = {**self._links(side, request.path.removeprefix("/v3")), **_NO_PAGES}
        return Answer(body={name: items, "links": links})

    def _links(self, side: Side, path: str) -> dict[str, str | None]:
        return {"self": f"{self._base(side)}/v3{path}"}

    # -- credentials of the caller --------------------

    def _refuse_password(self, request: Request, _side: Side) -> Answer:
        self._self(request, "change_password")
        raise HttpError(
            403, "The user of a session keeps the password that is in the session's clouds.yaml."
        )

    def _for_keys(self, request: Request, rule: str) -> Grant:
        """Return the caller, who logged in as the user of the path."""
        caller = self._self(request, rule)
        if caller.trust or caller.is_delegated:
            raise _forbidden("Delegated tokens cannot access credentials directly.", prefix="")
        return caller

    def _keys(self, request: Request, side: Side) -> Answer:
        user = self._for_keys(request, "ec2_list_credentials").user
        keys = [self._shown_key(key, side) for key in self._identity.keys_of(user.id)]
        return self._list(request, side, "credentials", keys)

    def _create_key(self, request: Request, side: Side) -> Answer:
        caller = self._for_keys(request, "ec2_create_credential")
        project = request.json().get("tenant_id")
        if project != caller.project:
            raise HttpError(404, f"Could not find project: {project}.")
        if len(self._identity.keys_of(caller.user.id)) >= MAX_CREDENTIALS:
            raise HttpError(
                403,
                f"Unable to create additional credentials, maximum of {MAX_CREDENTIALS} already "
                "exceeded for user.",
            )
        made = self._identity.create_key(caller.user.id, caller.project)
        return Answer(201, {"credential": self._shown_key(made, side)})

    def _key(self, request: Request, side: Side) -> Answer:
        return Answer(body={"credential": self._shown_key(self._own_key(request), side)})

    def _delete_key(self, request: Request, _side: Side) -> Answer:
        self._identity.delete_key(self._own_key(request).id)
        return Answer(204)

    def _own_key(self, request: Request) -> AccessKey:
        user = self._for_keys(request, "ec2_get_credential").user
        access = request.parts["access"]
        for key in self._identity.keys_of(user.id):
            if key.access == access:
                return key
        raise HttpError(404, f"Could not find credential: {access}.")

    def _shown_key(self, key: AccessKey, side: Side) -> dict[str, Any]:
        return {
            "access": key.access,
            "secret": key.secret,
            "user_id": key.user,
            "tenant_id": key.project,
            "trust_id": None,
            "links": self._links(side, f"/users/{key.user}/credentials/OS-EC2/{key.access}"),
        }

    def _for_applications(self, request: Request, rule: str) -> Grant:
        caller = self._self(request, rule)
        if caller.trust or (caller.is_delegated and not caller.application):
            raise HttpError(
                403, "Cannot manage application credentials with a token issued via delegation."
            )
        return caller

    def _applications(self, request: Request, side: Side) -> Answer:
        user = self._for_applications(request, "list_application_credentials").user
        shown = [
            self._shown_application(each, side)
            for each in self._identity.applications.of(user.id)
            if request.one("name", each.name) == each.name
        ]
        return self._list(request, side, "application_credentials", shown)

    def _create_application(self, request: Request, side: Side) -> Answer:
        caller = self._for_applications(request, "create_application_credential")
        self._check_unrestricted(caller)
        body = request.json().get("application_credential")
        if not isinstance(body, dict):
            raise HttpError(400, "'application_credential' is a required property")
        made, secret = self._identity.applications.create(
            caller.user.id, caller.project, caller.roles, body
        )
        shown = {**self._shown_application(made, side), "secret": secret}
        return Answer(201, {"application_credential": shown})

    def _application(self, request: Request, side: Side) -> Answer:
        found = self._own_application(request, "get_application_credential")
        return Answer(body={"application_credential": self._shown_application(found, side)})

    def _delete_application(self, request: Request, _side: Side) -> Answer:
        found = self._own_application(request, "delete_application_credential")
        self._check_unrestricted(self._caller(request))
        self._identity.applications.delete(found.id)
        return Answer(204)

    def _own_application(self, request: Request, rule: str) -> ApplicationCredential:
        user = self._for_applications(request, rule).user
        found = self._identity.applications.get(request.parts["id"])
        if found is None or found.user != user.id:
            raise HttpError(404, f"Could not find Application Credential: {request.parts['id']}.")
        return found

    def _check_unrestricted(self, caller: Grant) -> None:
        if self._identity.is_restricted(caller):
            raise _forbidden(
                "Using method 'application_credential' is not allowed for managing additional "
                "application credentials.",
                prefix="",
            )

    def _shown_application(self, made: ApplicationCredential, side: Side) -> dict[str, Any]:
        return {
            "id": made.id,
            "name": made.name,
            "description": made.description or None,
            "project_id": made.project,
            "roles": [{"id": role, "name": role, "domain_id": None} for role in made.roles],
            "unrestricted": made.unrestricted,
            "expires_at": made.expires_at or None,
            "links": self._links(side, f"/users/{made.user}/application_credentials/{made.id}"),
        }


def _subject(token: str) -> tuple[tuple[str, str]]:
    return (("X-Subject-Token", token),)


def _admins() -> Iterator[tuple[str, str, str]]:
    """Yield the requests of administrators by Keystone's policies: method, path and rule.

    The rules are in ``keystone/common/policies``.
    """
    for kind in ("user", "project", "domain", "group", "role", "service", "endpoint"):
        yield "GET", f"/v3/{kind}s", f"list_{kind}s"
        yield "POST", f"/v3/{kind}s", f"create_{kind}"
        yield "PATCH", f"/v3/{kind}s/{{id}}", f"update_{kind}"
        yield "DELETE", f"/v3/{kind}s/{{id}}", f"delete_{kind}"
    for kind in ("group", "role", "service", "endpoint"):
        yield "GET", f"/v3/{kind}s/{{id}}", f"get_{kind}"
    yield "POST", "/v3/regions", "create_region"
    yield "PATCH", "/v3/regions/{id}", "update_region"
    yield "DELETE", "/v3/regions/{id}", "delete_region"
    yield "GET", "/v3/role_assignments", "list_role_assignments"
    # OSSA-2025-002: a service's. Heat checks signatures without HTTP here (heat/api.py).
    for version in ("v3", "v2.0"):
        yield "POST", f"/{version}/ec2tokens", "ec2tokens"


def _forbidden(rule: str, *, prefix: str = "identity:") -> HttpError:
    """Return Keystone's refusal by a policy."""
    end = "" if rule.endswith(".") else "."
    return HttpError(
        403, f"You are not authorized to perform the requested action: {prefix}{rule}{end}"
    )


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
