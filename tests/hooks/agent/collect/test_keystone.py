"""Tokens: the API that is used, their lifetime, and where the password is sent."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from heat_agent.collect import keystone
from heat_agent.collect.keystone import Keystone, Token, endpoint
from heat_agent.collect.problems import Unavailable
from heat_agent.collect.trust import Trust
from heat_agent.collect.web import Client
from stub_server import Reply

from .conftest import PASSWORD


@pytest.fixture
def make(cloud):
    clients = [Client(Trust({}), {})]

    def make_one(path):
        options = SimpleNamespace(
            auth_url=cloud.url + path, user_id="u1", password=PASSWORD, project_id="p1"
        )
        return Keystone(clients[0], options)

    yield make_one
    clients[0].close()


def asked(cloud):
    return [f"{request.method} {request.path}" for request in cloud.requests]


@pytest.mark.parametrize(
    ("path", "requests"),
    [
        ("/keystone/v3", ["POST /keystone/v3/auth/tokens"]),
        ("/keystone/v3/", ["POST /keystone/v3/auth/tokens"]),
        ("/keystone", ["GET /keystone/", "POST /keystone/v3/auth/tokens"]),
        ("/keystone/v2.0", ["GET /keystone/", "POST /keystone/v3/auth/tokens"]),
    ],
)
def test_api_version_is_that_of_the_url_or_discovered(cloud, make, path, requests):
    keystone = make(path)
    for _ in range(3):
        assert keystone.token().value == "gAAAA-token-of-the-user-1"
    assert asked(cloud) == requests


def test_keystone_with_only_v2_is_used(cloud, make):
    """The request and the answer are those of the Identity API v2.0."""
    cloud.versions = {"versions": {"values": [{"id": "v2.0", "status": "stable", "links": []}]}}
    token = make("/keystone/v2.0").token()
    assert asked(cloud)[1] == "POST /keystone/v2.0/tokens"
    assert json.loads(cloud.requests[1].body) == {
        "auth": {
            "passwordCredentials": {"userId": "u1", "password": PASSWORD},
            "tenantId": "p1",
        }
    }
    assert endpoint(token, "messaging", "here") == f"{cloud.url}/zaqar"


@pytest.mark.parametrize(
    "href",
    ["http://elsewhere.invalid/v3/", "https://127.0.0.1/v3", "file:///v3", "http://[", None, 5],
)
def test_password_stays_with_the_host_of_auth_url(cloud, make, href):
    version = {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": href}]}
    cloud.versions = {"versions": {"values": [version]}}
    make("/keystone").token()
    assert asked(cloud)[1] == "POST /keystone/v3/auth/tokens"


@pytest.mark.parametrize("versions", [{"versions": 5}, {"versions": [None, {"id": 5}]}, {"x": []}])
def test_invalid_list_of_versions_means_v3(cloud, make, versions):
    cloud.versions = versions
    assert make("/keystone/v2.0").token()
    assert asked(cloud)[1] == "POST /keystone/v3/auth/tokens"


def test_keystone_without_a_list_has_v3(cloud, make):
    cloud.reply = lambda request: Reply(404) if request.method == "GET" else None
    assert make("/keystone/v2.0").token()


def test_redirect_does_not_get_the_password(cloud, make):
    cloud.reply = lambda request: Reply(302, headers={"Location": "http://127.0.0.1:9/"})
    with pytest.raises(Unavailable):
        make("/keystone/v3").token()
    assert len(cloud.requests) == 1


def test_refused_token_is_renewed_once(cloud, make):
    keystone = make("/keystone/v3")
    keystone.token()
    tokens = []

    def act(token):
        tokens.append(token.value)
        return SimpleNamespace(status=401, url="http://x/", headers={})

    with pytest.raises(Unavailable, match="401"):
        keystone.authorized(act)
    assert tokens == ["gAAAA-token-of-the-user-1", "gAAAA-token-of-the-user-2"]


@pytest.mark.parametrize(
    ("issued", "expires", "lifetime"),
    [
        ("2026-01-02T03:04:05.000000Z", "2026-01-02T04:04:05.000000Z", 3600),
        ("2026-01-02T03:04:05Z", "2026-01-03T03:04:05Z", 86400),
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05Z", 300),
        ("2026-01-02T03:04:05Z", "2020-01-02T03:04:05Z", 300),
        (None, "2026-01-02T03:04:05Z", 300),
        ("soon", "later", 300),
        ("1-1-1T1:1:1", "99999999999-1-1T1:1:1", 300),
        ([], {}, 300),
    ],
)
def test_lifetime_of_a_token_is_read(issued, expires, lifetime):
    """The form of a time is Keystone's: the Identity API v3, "Password authentication"."""
    assert keystone._between(issued, expires) == lifetime


def test_expired_token_is_not_used():
    assert Token("x", [], 3600).is_fresh()
    assert Token("x", [], 10).is_fresh()
    assert not Token("x", [], 0).is_fresh()


@pytest.mark.parametrize(
    "catalog", [None, 5, [5], [{"type": "a"}], [{"type": "a", "endpoints": [5, {"url": 5}]}]]
)
def test_invalid_catalog_has_no_endpoint(catalog):
    token = keystone.Token("x", list(keystone._endpoints_v3(catalog)), 9)
    with pytest.raises(Unavailable, match='no public endpoint of type "a" in the region "r"'):
        keystone.endpoint(token, "a", "r")
