"""Authenticate and authorise callers of an API, as keystonemiddleware and a policy do."""

from __future__ import annotations

from hotplate.cloud.http.rest import HttpError, Request
from hotplate.cloud.keystone.identity import Grant, Identity, IdentityError

#: Roles of a project's users.  A stack user (``heat_stack_user``) has none of them.
WRITERS = frozenset({"member"})
READERS = WRITERS | {"reader"}


def admit(request: Request, identity: Identity) -> Grant:
    """Return the grant of a request's token: a project's user's, not one of a guest's users.

    :raises HttpError: 401 without a valid token, as keystonemiddleware answers; 403 for a role
        without the permission.
    """
    try:
        grant = identity.read_token(request.header("X-Auth-Token"))
    except IdentityError:
        raise unauthorized(identity.host["keystone"]) from None
    enough = READERS if request.method in ("GET", "HEAD") else WRITERS
    if not enough & set(grant.roles):
        raise HttpError(403, "Policy doesn't allow the action to be performed.")
    return grant


def unauthorized(keystone: str) -> HttpError:
    """Return the answer of keystonemiddleware to a request without a valid token.

    :param keystone: the URL of Keystone on the caller's side.
    """
    message = "The request you have made requires authentication."
    error = {"code": 401, "title": "Unauthorized", "message": message}
    challenge = f'Keystone uri="{keystone}/v3"'
    headers = (("WWW-Authenticate", challenge),)
    return HttpError(401, message, headers=headers, body={"error": error})
