"""Authenticate and authorise callers of an API, as keystonemiddleware and a policy do."""

from __future__ import annotations

from hotplate.cloud.http.rest import HttpError, Request
from hotplate.cloud.keystone.identity import Grant, Identity, IdentityError

#: Roles of a project's users.  A stack user (``heat_stack_user``) has none of them.
WRITERS = frozenset({"admin", "member"})
READERS = WRITERS | {"reader"}

_UNAUTHORIZED = "The request you have made requires authentication."


class Guard:
    """Admits the users of a project only; the users of a guest are refused."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def check(self, request: Request) -> Grant:
        """Return the grant of a request's token.

        :raises HttpError: 401 without a valid token, as keystonemiddleware answers; 403 for a role
            without the permission.
        """
        try:
            grant = self._identity.read_token(request.header("X-Auth-Token"))
        except IdentityError:
            raise self._unauthorized() from None
        enough = READERS if request.method in ("GET", "HEAD") else WRITERS
        if not enough & set(grant.roles):
            raise HttpError(403, "Policy doesn't allow the action to be performed.")
        return grant

    def _unauthorized(self) -> HttpError:
        error = {"code": 401, "title": "Unauthorized", "message": _UNAUTHORIZED}
        uri = self._identity.addresses.host["keystone"] + "/v3"
        return HttpError(
            401,
            _UNAUTHORIZED,
            headers=(("WWW-Authenticate", f'Keystone uri="{uri}"'),),
            body={"error": error},
        )
