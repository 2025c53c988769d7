"""Keystone tokens for a user with a password: v3, or v2.0 where there is no newer version.

A token is kept until it expires, and renewed once if a service refuses it.
"""

from __future__ import annotations

import time

from heat_config.address import Target, redacted

from . import documents, web
from .problems import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from heat_config.http1 import Answer

    from .web import Client

UNAUTHORIZED = 401
UNKNOWN_LIFETIME = 300.0
#: Seconds before its expiry when a token is no longer used.
EARLY = 60.0

TOKEN_LIMIT = 4 << 20
#: Maximum users whose tokens are kept; more come only from changes of the configuration.
USERS = 8


class Token:
    """A token: *value* authenticates the user, *catalog* is Keystone's list of services."""

    def __init__(
        self, value: str, catalog: list[tuple[str, tuple[Any, ...], str]], lifetime: float
    ) -> None:
        self.value = value
        self.catalog = catalog
        # A token of less than ten minutes is used for nine tenths of its lifetime.
        self._end = uptime() + lifetime - min(EARLY, lifetime / 10)

    def is_fresh(self) -> bool:
        return uptime() < self._end


def of_user(client: Client, options: Any) -> Keystone:
    """Return the Keystone of a user, the same one for the same options: its token is reused."""
    values = (options.auth_url, options.user_id, options.password, options.project_id)
    if values not in client.users:
        if len(client.users) >= USERS:
            client.users.clear()
        client.users[values] = Keystone(client, options)
    user: Keystone = client.users[values]
    return user


class Keystone:
    """Get tokens for the user in *options*: auth_url, user_id, password, project_id."""

    def __init__(self, client: Client, options: Any) -> None:
        self._client = client
        self._options = options
        self._base = ""
        self._token: Token | None = None

    def authorized(self, act: Callable[[Token], Answer]) -> Answer:
        """Return the answer of ``act(token)``, if its status is below 400. Raises Unavailable."""
        answer = act(self.token())
        # The token may have been revoked: one more try, with a new one.
        if answer.status == UNAUTHORIZED:
            self._token = None
            answer = act(self.token())
        return web.accept(answer)

    def token(self) -> Token:
        """Return a valid token. Raises Unavailable."""
        if self._token is None or not self._token.is_fresh():
            self._token = None
            self._base = self._base or self._discover()
            self._token = self._ask_v2() if self._base.endswith("/v2.0") else self._ask_v3()
        return self._token

    def forget(self) -> None:
        """Discard the token."""
        self._token = None

    def _discover(self) -> str:
        """Return the URL of the API: that of auth_url, or the newest that Keystone lists.

        A link to another host is not used: it may be wrong behind a proxy, and the password must
        not be sent there.
        """
        named = str(self._options.auth_url).rstrip("/")
        # The version is known, which saves a request.
        if named.endswith("/v3"):
            return named
        root = named[: -len("/v2.0")] if named.endswith("/v2.0") else named
        headers = {"Accept": "application/json"}
        try:
            answer = self._client.ask(root + "/", headers=headers, limit=TOKEN_LIMIT, follow=False)
            # Keystone answers 300 if there are several.
            listed = documents.decode_object(answer.body, "the list of versions")
        except Unavailable as error:
            # A server in trouble is asked again later; one without a list is assumed to have v3.
            if error.overloaded:
                raise
            return root + "/v3"
        return _newest(listed, root)

    def _ask_v3(self) -> Token:
        user = {"id": self._options.user_id, "password": self._options.password}
        body = {
            "auth": {
                "identity": {"methods": ["password"], "password": {"user": user}},
                "scope": {"project": {"id": self._options.project_id}},
            }
        }
        answer, listed = self._post("/auth/tokens", body)
        token = listed.get("token")
        value = answer.headers.get("x-subject-token")
        if not value or not isinstance(token, dict):
            raise Unavailable(f'"{redacted(answer.url)}" returned no token')
        lifetime = _between(token.get("issued_at"), token.get("expires_at"))
        return Token(value, list(_endpoints_v3(token.get("catalog"))), lifetime)

    def _ask_v2(self) -> Token:
        body = {
            "auth": {
                "passwordCredentials": {
                    "userId": self._options.user_id,
                    "password": self._options.password,
                },
                "tenantId": self._options.project_id,
            }
        }
        answer, listed = self._post("/tokens", body)
        access = listed.get("access")
        token = access.get("token") if isinstance(access, dict) else None
        if access is None or not isinstance(token, dict) or not isinstance(token.get("id"), str):
            raise Unavailable(f'"{redacted(answer.url)}" returned no token')
        lifetime = _between(token.get("issued_at"), token.get("expires"))
        return Token(token["id"], list(_endpoints_v2(access.get("serviceCatalog"))), lifetime)

    def _post(self, path: str, body: dict[str, Any]) -> tuple[Answer, dict[str, Any]]:
        import json

        url = self._base + path
        answer = self._client.ask(
            url,
            method="POST",
            headers={"Content-Type": "application/json", "Accept": "application/json"},
            body=json.dumps(body).encode("ascii"),
            limit=TOKEN_LIMIT,
            # The body has the password, which must not go to another address.
            follow=False,
        )
        web.accept(answer)
        where = f'the answer of "{redacted(url)}"'
        return answer, documents.decode_object(answer.body, where)


def endpoint(token: Token, kind: str, region: str | None) -> str:
    """Return the public URL of the first service of type *kind*, without a trailing slash.

    Raises Unavailable.
    """
    for service, place, url in token.catalog:
        if service == kind and (not region or region in place):
            return url.rstrip("/")
    where = f' in the region "{region}"' if region else ""
    raise Unavailable(f'Keystone has no public endpoint of type "{kind}"{where}')


def _endpoints_v3(catalog: Any) -> Iterator[tuple[str, tuple[Any, ...], str]]:
    for service, entry in _entries(catalog):
        if entry.get("interface") == "public" and isinstance(entry.get("url"), str):
            # The same region: "region" is the older name, and keystoneauth reads both.
            yield service, (entry.get("region_id"), entry.get("region")), entry["url"]


def _endpoints_v2(catalog: Any) -> Iterator[tuple[str, tuple[Any, ...], str]]:
    for service, entry in _entries(catalog):
        if isinstance(entry.get("publicURL"), str):
            yield service, (entry.get("region"),), entry["publicURL"]


def _entries(catalog: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    for service in catalog if isinstance(catalog, list) else ():
        if not isinstance(service, dict):
            continue
        listed = service.get("endpoints")
        for entry in listed if isinstance(listed, list) else ():
            if isinstance(entry, dict):
                yield service.get("type"), entry


def _newest(listed: Any, root: str) -> str:
    """Return the URL of the newest API in Keystone's list of versions."""
    versions = listed.get("versions")
    # The root of Keystone wraps its list in "values"; the URL of one API has a single "version".
    versions = versions.get("values") if isinstance(versions, dict) else versions
    versions = versions if isinstance(versions, list) else [listed.get("version")]
    has_v2 = False
    for version in versions:
        name = version.get("id") if isinstance(version, dict) else None
        if isinstance(name, str) and name.startswith("v3"):
            return _on_host(root, _link(version)) or root + "/v3"
        has_v2 = has_v2 or (isinstance(name, str) and name.startswith("v2"))
    return root + "/v2.0" if has_v2 else root + "/v3"


def _link(version: Any) -> Any:
    links = version.get("links")
    for link in links if isinstance(links, list) else ():
        if isinstance(link, dict) and link.get("rel") == "self":
            return link.get("href")
    return None


def _on_host(root: str, url: Any) -> str | None:
    """Return *url* if it has the scheme, host and port of *root*, else None."""
    try:
        before, after = Target(root), Target(url)
    except ValueError:
        return None
    same = (before.scheme, before.host, before.port) == (after.scheme, after.host, after.port)
    return url.rstrip("/") if same else None


def _between(start: Any, end: Any) -> float:
    """Return the seconds between two of Keystone's timestamps, which are in UTC."""
    try:
        # The lifetime by Keystone's clock: that of the guest may be wrong.
        return max(0.0, _seconds(end) - _seconds(start)) or UNKNOWN_LIFETIME
    except (AttributeError, TypeError, ValueError, OverflowError):
        return UNKNOWN_LIFETIME


def _seconds(text: str) -> float:
    day, clock = text.rstrip("Z").split("T")
    year, month, date = (int(part) for part in day.split("-"))
    hour, minute, second = clock.split(":")
    # Only the difference is used, so the time zone does not matter.
    # Keystone writes fractions of a second: 2026-01-01T00:00:00.000000Z.
    return time.mktime((year, month, date, int(hour), int(minute), int(float(second)), 0, 0, 0))


def uptime() -> float:
    # Not CLOCK_MONOTONIC, which stands still while the machine is suspended.
    return time.clock_gettime(time.CLOCK_BOOTTIME)
