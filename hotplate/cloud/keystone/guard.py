"""Who calls an API, and whether they may: the part of keystonemiddleware and of a policy."""

from __future__ import annotations

from hotplate.cloud.http.rest import HttpError, Request
from hotplate.cloud.keystone.identity import Grant, Identity, IdentityError

#: Roles of a project's people.  A stack user (``heat_stack_user``) has none of them.
WRITERS = frozenset({"admin", "member"})
READERS = WRITERS | {"reader"}

_UNAUTHORIZED = "The request you have made requires authentication."


class Guard:
    """Lets the people of a project in, and nobody else: a guest's own users are turned away."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def check(self, request: Request) -> Grant:
        """Return whose request it is, by its token.

        :raises HttpError: 401 without a good token, as keystonemiddleware answers; 403 for a role
            that may not do it.
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
