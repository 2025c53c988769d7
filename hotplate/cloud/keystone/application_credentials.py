"""Application credentials, with which a program logs in for a user, with some of the user's roles.

The rules and messages are those of Keystone's ``application_credential`` and ``api/users.py``.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hotplate.cloud.database.store import Store
from hotplate.cloud.http.rest import HttpError, naive_time, seconds_of

#: Maximum number of one user's credentials of a kind; a guest's user may create some, too.
MAX_CREDENTIALS = 100
#: Field of a request -> its type.  null is as good as no value.
_TYPES: Mapping[str, type] = {
    "name": str,
    "description": str,
    "secret": str,
    "expires_at": str,
    "roles": list,
    "unrestricted": bool,
    "access_rules": list,
}
MAX_TEXT = 255


@dataclass(frozen=True)
class ApplicationCredential:
    """An application credential, without its secret."""

    id: str
    name: str
    description: str
    user: str
    project: str
    roles: tuple[str, ...]
    unrestricted: bool
    #: ISO 8601 in UTC without a time zone, "" for never.
    expires_at: str

    @property
    def ends(self) -> float:
        """Seconds since the epoch when it expires."""
        return seconds_of(self.expires_at) if self.expires_at else float("inf")


class ApplicationCredentials:
    """The application credentials of all users.

    :param digest: returns the form in which a secret is stored.
    """

    def __init__(self, store: Store, digest: Callable[[str], str]) -> None:
        self._store = store
        self._digest = digest

    def create(
        self, user: str, project: str, roles: tuple[str, ...], body: Mapping[str, Any]
    ) -> tuple[ApplicationCredential, str]:
        """Create one as a client requests it; return it with its secret.

        :param roles: those of the caller, of which the credential gets all or some.
        :raises HttpError: 400 for a bad request, 403 for too many, 409 for a name that is taken.
        """
        _check(body)
        wanted = [each.get("id") or each.get("name") for each in body.get("roles") or []]
        if unknown := [each for each in wanted if each not in roles]:
            raise HttpError(
                400,
                f"Invalid application credential: Cannot create an application credential with "
                f"unassigned role: {unknown[0]}",
            )
        made = ApplicationCredential(
            uuid.uuid4().hex,
            body["name"],
            body.get("description") or "",
            user,
            project,
            tuple(wanted) or roles,
            bool(body.get("unrestricted")),
            _expiry(body.get("expires_at") or ""),
        )
        secret = body.get("secret") or secrets.token_urlsafe(64)
        with self._store.transaction():
            present = self.of(user)
            if len(present) >= MAX_CREDENTIALS:
                raise HttpError(
                    403,
                    "Unable to create additional application credentials, maximum of "
                    f"{MAX_CREDENTIALS} already exceeded for user.",
                )
            if any(each.name == made.name for each in present):
                raise HttpError(
                    409,
                    "Conflict occurred attempting to store application_credential - Duplicate "
                    f"entry found with name {made.name}.",
                )
            self._store.insert(
                "hotplate_application",
                made.id,
                made.name,
                made.description,
                user,
                project,
                json.dumps(made.roles),
                int(made.unrestricted),
                made.expires_at,
                self._digest(secret),
            )
        return made, secret

    def of(self, user: str) -> list[ApplicationCredential]:
        """Return those of a user, oldest first."""
        return [_read(row) for row in self._store.find("hotplate_application", user=user)]

    def get(self, credential_id: str) -> ApplicationCredential | None:
        """Return the one with that id."""
        row = self._store.first("hotplate_application", id=credential_id)
        return _read(row) if row else None

    def delete(self, credential_id: str) -> None:
        """Delete one; tokens by it become invalid."""
        self._store.delete("hotplate_application", id=credential_id)

    def check(self, credential: ApplicationCredential | None, secret: str) -> bool:
        """Return True when that is the credential's secret, and it has not expired."""
        if credential is None:
            return False
        row = self._store.first("hotplate_application", id=credential.id)
        stored = str(row["secret"]) if row else ""
        return hmac.compare_digest(stored, self._digest(secret)) and credential.ends > time.time()


def _read(row: Any) -> ApplicationCredential:
    fields = list(row)[:8]
    fields[5], fields[6] = tuple(json.loads(fields[5])), bool(fields[6])
    return ApplicationCredential(*fields)


def _check(body: Mapping[str, Any]) -> None:
    if body.get("name") is None:
        raise HttpError(400, "'name' is a required property")
    for field, kind in _TYPES.items():
        if body.get(field) is not None and not isinstance(body[field], kind):
            raise HttpError(
                400, f"Invalid input for field '{field}': {body[field]!r} is of another type"
            )
    if not 0 < len(body["name"].strip()) <= MAX_TEXT:
        raise HttpError(400, f"Invalid input for field 'name': not 1 to {MAX_TEXT} characters")
    if not all(isinstance(each, dict) for each in body.get("roles") or []):
        raise HttpError(400, "Invalid input for field 'roles': not a list of objects")
    if body.get("access_rules"):
        # A service would have to ask for them at each request.
        raise HttpError(400, "hotplate has no access rules: its services do not check them.")


def _expiry(text: str) -> str:
    """Return the end of a credential as it is stored."""
    if not text:
        return ""
    try:
        at = seconds_of(text)
    except (ValueError, OverflowError):
        raise HttpError(
            400,
            "Timestamp not in expected format. The server could not comply with the request since "
            "it is either malformed or otherwise incorrect. The client is assumed to be in error.",
        ) from None
    if at <= time.time():
        raise HttpError(
            400,
            "The 'expires_at' must not be before now. The server could not comply with the request "
            "since it is either malformed or otherwise incorrect. The client is assumed to be in "
            "error.",
        )
    return naive_time(at)
