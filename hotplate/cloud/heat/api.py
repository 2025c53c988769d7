"""Heat's two APIs as WSGI applications, with the pipelines of a deployment's ``api-paste.ini``.

A deployment asks Keystone over HTTP; here Heat's own ``EC2Token`` filter and keystonemiddleware's
own base class call the identity directly.
"""

from __future__ import annotations

import json
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from heat.api import cfn, openstack
from heat.api.aws import ec2token
from heat.api.cfn import v1 as cfn_v1
from heat.api.openstack import v1 as openstack_v1
from heat.common import context as heat_context
from keystoneauth1 import exceptions as ks_exceptions
from keystonemiddleware import auth_token  # type: ignore[import-untyped]
from keystonemiddleware.auth_token import (  # type: ignore[import-untyped]
    _exceptions as ksm_exceptions,
)
from oslo_config import cfg
from oslo_middleware.request_id import RequestId

from hotplate.cloud.heat.describe_cache import DatabaseVersion, DescribeCache
from hotplate.cloud.http.addresses import Side, guest_base
from hotplate.cloud.http.gateway import WSGIApp
from hotplate.cloud.http.rest import Answer
from hotplate.cloud.keystone.guard import unauthorized
from hotplate.cloud.keystone.identity import Identity, IdentityError


class _Response:
    """The part of Keystone's response that ``EC2Token`` reads."""

    def __init__(self, token: str, body: dict[str, object]) -> None:
        self.headers = {"X-Subject-Token": token}
        self._body = body

    def json(self) -> dict[str, object]:
        return self._body


class _Keystone:
    """The adapter to which ``EC2Token`` posts a signature."""

    class session:  # noqa: N801
        # EC2Token writes ``adapter.session.auth`` to its log.
        auth = "hotplate"

    def __init__(self, identity: Identity, ttl: int) -> None:
        self._identity = identity
        self._ttl = ttl

    def get_endpoint(self) -> str:
        return self._identity.host["keystone"]

    def post(self, url: str, data: str, headers: dict[str, str]) -> _Response:  # noqa: ARG002
        credentials = json.loads(data)["ec2Credentials"]
        try:
            grant = self._identity.check_ec2(credentials, ttl=self._ttl)
        except IdentityError as error:
            # EC2Token answers it with AccessDenied.
            raise ks_exceptions.Unauthorized(str(error)) from error
        body = self._identity.describe(grant, Side.ENGINE, catalog=False)
        return _Response(self._identity.token(grant), body)


class _Ec2Token(ec2token.EC2Token):  # type: ignore[misc]
    """Heat's filter, with the identity instead of an HTTP client."""

    def __init__(self, app: object, identity: Identity, ttl: int) -> None:
        self._keystone = _Keystone(identity, ttl)
        super().__init__(app, {})

    def _create_keystone_adapters(self) -> dict[None, _Keystone]:
        return {None: self._keystone}


class _AuthToken(auth_token.BaseAuthProtocol):  # type: ignore[misc]
    """keystonemiddleware's filter, with the identity instead of an HTTP client.

    A request with a bad token gets the response of the real filter.
    """

    def __init__(self, app: object, identity: Identity) -> None:
        super().__init__(app, enforce_token_bind="disabled")  # noqa: S106
        self._identity = identity

    def fetch_token(self, token: str, **_: object) -> dict[str, object]:
        try:
            grant = self._identity.read_token(token)
        except IdentityError as error:
            raise ksm_exceptions.InvalidToken(str(error)) from error
        return self._identity.describe(grant, Side.ENGINE)

    def process_request(self, request: Any) -> Any:
        # Heat trusts X-User-Id, X-Roles and the like, so a client must not set them itself.
        request.remove_auth_headers()
        response = super().process_request(request)
        if response:
            return response
        if not request.user_token or not request.user_token_valid:
            return request.get_response(_unauthorized)
        request.set_user_headers(request.token_auth.user)
        return None


def _unauthorized(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:  # noqa: ARG001
    error = unauthorized(guest_base("keystone"))
    return Answer(error.status, error.body, error.headers).send(start_response)


class _AuthUrl:
    """Passes Keystone's URL to Heat, as its ``authurl`` filter does."""

    def __init__(self, app: WSGIApp, identity: Identity) -> None:
        self._app = app
        self._identity = identity

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Any:
        environ["HTTP_X_AUTH_URL"] = self._identity.host["keystone"] + "/v3"
        return self._app(environ, start_response)


def heat_app(identity: Identity, version: DatabaseVersion) -> WSGIApp:
    """Return the REST API, whose filters are those of a deployment's pipeline.

    :param version: of Heat's database; cached answers to polls are valid until it changes.
    """
    # Innermost first: a request passes these from the last to the first.
    app: Any = openstack_v1.API(cfg.CONF)
    app = heat_context.ContextMiddleware(app, cfg.CONF)
    # Behind authtoken, whose headers tell the cache who asks.
    app = DescribeCache(app, version)
    app = _AuthToken(app, identity)
    app = _AuthUrl(app, identity)
    app = openstack.version_negotiation_filter(app, cfg.CONF)
    app = openstack.faultwrap_filter(app, cfg.CONF)
    return RequestId(app)


def cfn_app(identity: Identity, version: DatabaseVersion, *, signature_ttl: int) -> WSGIApp:
    """Return the CloudFormation API, whose filters are those of a deployment's pipeline.

    :param version: of Heat's database; cached answers to polls are valid until it changes.
    """
    app: Any = cfn_v1.API(cfg.CONF)
    app = heat_context.ContextMiddleware(app, cfg.CONF)
    app = DescribeCache(app, version)
    app = _AuthToken(app, identity)
    app = _Ec2Token(app, identity, signature_ttl)
    app = cfn.version_negotiation_filter(app, cfg.CONF)
    return RequestId(app)
