"""Access to an API, by the token's project, role and age."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hotplate.cloud.database.store import Store
from hotplate.cloud.http.rest import HttpError, Request
from hotplate.cloud.keystone.guard import admit
from hotplate.cloud.keystone.identity import Grant, Identity, IdentityError


@pytest.fixture
def identity(tmp_path: Path) -> Iterator[Identity]:
    store = Store(tmp_path / "neighbours.db")
    made = Identity(store)
    made.host = {"keystone": "http://127.0.0.1:5000"}
    yield made
    store.close()


def check(identity: Identity, token: str, method: str = "GET") -> Grant:
    request = Request(method, "/x", {}, {"HTTP_X_AUTH_TOKEN": token})
    return admit(request, identity)


def token_of(identity: Identity, user_id: str, roles: tuple[str, ...] | None = None) -> str:
    user = identity.user(user_id)
    assert user is not None
    grant = identity.grant(user)
    if roles is not None:
        grant = Grant(user, grant.project, roles, grant.issued, grant.expires)
    return identity.token(grant)


def test_expired_token_is_refused(identity: Identity) -> None:
    token = token_of(identity, identity.owner.user_id)
    identity.skew = lambda: 3601.0
    with pytest.raises(HttpError) as refused:
        check(identity, token)
    assert refused.value.status == 401


def test_reader_may_only_read(identity: Identity) -> None:
    token = token_of(identity, identity.owner.user_id, ("reader",))
    assert check(identity, token, "GET").roles == ("reader",)
    with pytest.raises(HttpError) as refused:
        check(identity, token, "POST")
    assert refused.value.status == 403


def test_tampered_token_is_refused(identity: Identity) -> None:
    token = token_of(identity, identity.owner.user_id)
    assert identity.read_token(token).user.id == identity.owner.user_id
    for wrong in ("", "x", token[:-1], token[:-4] + "AAAA", "gAAAAA"):
        with pytest.raises(IdentityError):
            identity.read_token(wrong)
