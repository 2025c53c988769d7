"""An object store with TempURLs, as Swift's ``tempurl`` and ``proxy`` answer.

Heat's own swiftclient uses it with a token; a guest with nothing but a signed URL.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable
from email.utils import formatdate
from urllib.parse import parse_qs, unquote
from wsgiref.types import StartResponse, WSGIEnvironment

from hotplate.cloud.database.store import Store
from hotplate.cloud.http import limits
from hotplate.cloud.http.gateway import WSGIApp
from hotplate.cloud.keystone.identity import Identity, IdentityError

#: Length of the hexadecimal signature -> its hash.
_DIGESTS = {40: "sha1", 64: "sha256", 128: "sha512"}
#: A signature for the key also allows these methods.
_ALSO = {"HEAD": ("GET", "PUT", "POST", "DELETE")}

_UNAUTHORIZED = (
    "401 Unauthorized",
    b"<html><h1>Unauthorized</h1><p>This server could not verify that you are authorized to "
    b"access the document you requested.</p></html>",
)
_BAD_TEMPURL = ("401 Unauthorized", b"401 Unauthorized: Temp URL invalid\n")
_NOT_FOUND = (
    "404 Not Found",
    b"<html><h1>Not Found</h1><p>The resource could not be found.</p></html>",
)


class SwiftApi:
    """The WSGI application."""

    def __init__(
        self,
        store: Store,
        identity: Identity,
        *,
        skew: Callable[[], float] = lambda: 0.0,
        lift_limits: bool = False,
    ) -> None:
        self._lift_limits = lift_limits
        self._store = store
        self._identity = identity
        self._skew = skew

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        parts = path.split("/", 4)
        if len(parts) < 3 or parts[1] != "v1" or not parts[2].startswith("AUTH_"):
            return _answer(start_response, *_NOT_FOUND)
        account = parts[2]
        refusal = self._refusal(environ, path, account, is_object=len(parts) == 5)
        if refusal is not None:
            return _answer(start_response, *refusal)
        container = parts[3] if len(parts) > 3 else ""
        name = parts[4] if len(parts) > 4 else ""
        writes = environ["REQUEST_METHOD"] in ("PUT", "POST") and not self._lift_limits
        if writes and (why := too_large(environ, container, name)):
            return _answer(start_response, "400 Bad Request", why.encode())
        if name:
            return self._object(environ, start_response, (account, container, name))
        if container:
            return self._container(environ, start_response, (account, container))
        return self._account(environ, start_response, account)

    # -- who may --------------------

    def _refusal(
        self, environ: WSGIEnvironment, path: str, account: str, *, is_object: bool
    ) -> tuple[str, bytes] | None:
        query = parse_qs(environ.get("QUERY_STRING", ""))
        if "temp_url_sig" in query or "temp_url_expires" in query:
            good = is_object and self._temp_url_is_good(
                environ["REQUEST_METHOD"], path, account, query
            )
            return None if good else _BAD_TEMPURL
        try:
            grant = self._identity.read_token(environ.get("HTTP_X_AUTH_TOKEN", ""))
        except IdentityError:
            return _UNAUTHORIZED
        if account != f"AUTH_{grant.project}":
            return ("403 Forbidden", b"<html><h1>Forbidden</h1></html>")
        return None

    def _temp_url_is_good(
        self, method: str, path: str, account: str, query: dict[str, list[str]]
    ) -> bool:
        given = _signature(query.get("temp_url_sig", [""])[0])
        expires = query.get("temp_url_expires", [""])[0]
        key = self._headers(account).get("x-account-meta-temp-url-key", "")
        digest = _DIGESTS.get(len(given))
        # A time is at most as long as the largest that Swift's own integers take.
        if not key or digest is None or not re.fullmatch("[0-9]{1,18}", expires):
            return False
        if int(expires) <= time.time() + self._skew():
            return False
        for allowed in (method, *_ALSO.get(method, ())):
            text = f"{allowed}\n{expires}\n{path}".encode()
            made = hmac.new(key.encode(), text, digest).hexdigest()
            if hmac.compare_digest(made.encode(), given.encode()):
                return True
        return False

    # -- accounts and containers --------------------

    def _headers(self, account: str, container: str = "") -> dict[str, str]:
        row = self._store.row(
            "SELECT headers FROM hotplate_container WHERE account = ? AND name = ?",
            account,
            container,
        )
        return dict(json.loads(row["headers"])) if row else {}

    def _keep_headers(self, environ: WSGIEnvironment, account: str, container: str = "") -> None:
        kept = self._headers(account, container)
        for name, value in environ.items():
            header = name.removeprefix("HTTP_").replace("_", "-").lower()
            if (name.startswith("HTTP_X_") and "-meta-" in header) or "versions" in header:
                kept[header] = value
        self._store.write(
            "INSERT OR REPLACE INTO hotplate_container VALUES (?, ?, ?)",
            account,
            container,
            json.dumps(kept),
        )

    def _account(
        self, environ: WSGIEnvironment, start_response: StartResponse, account: str
    ) -> list[bytes]:
        method = environ["REQUEST_METHOD"]
        if method in ("POST", "PUT"):
            self._keep_headers(environ, account)
            return _answer(start_response, "204 No Content", b"")
        if method not in ("GET", "HEAD"):
            return _answer(start_response, "405 Method Not Allowed", b"")
        rows = self._store.rows(
            "SELECT name FROM hotplate_container WHERE account = ? AND name != '' ORDER BY name",
            account,
        )
        headers = [
            *self._headers(account).items(),
            ("X-Account-Container-Count", str(len(rows))),
        ]
        return _listing(environ, start_response, [{"name": row["name"]} for row in rows], headers)

    def _container(
        self, environ: WSGIEnvironment, start_response: StartResponse, place: tuple[str, str]
    ) -> list[bytes]:
        method = environ["REQUEST_METHOD"]
        existing = self._store.row(
            "SELECT name FROM hotplate_container WHERE account = ? AND name = ?", *place
        )
        if method == "PUT":
            self._keep_headers(environ, *place)
            return _answer(start_response, "202 Accepted" if existing else "201 Created", b"")
        if existing is None:
            return _answer(start_response, *_NOT_FOUND)
        rows = self._store.rows(
            "SELECT name, length(data) AS size, type, etag, modified FROM hotplate_object"
            " WHERE account = ? AND container = ? ORDER BY name",
            *place,
        )
        if method == "DELETE":
            if rows:
                return _answer(start_response, "409 Conflict", b"")
            self._store.write(
                "DELETE FROM hotplate_container WHERE account = ? AND name = ?", *place
            )
            return _answer(start_response, "204 No Content", b"")
        if method == "POST":
            self._keep_headers(environ, *place)
            return _answer(start_response, "204 No Content", b"")
        if method not in ("GET", "HEAD"):
            return _answer(start_response, "405 Method Not Allowed", b"")
        entries = [
            {
                "name": row["name"],
                "bytes": row["size"],
                "hash": row["etag"],
                "content_type": row["type"],
                "last_modified": time.strftime(
                    "%Y-%m-%dT%H:%M:%S.000000", time.gmtime(row["modified"])
                ),
            }
            for row in rows
        ]
        headers = [
            *self._headers(*place).items(),
            ("X-Container-Object-Count", str(len(rows))),
            ("X-Container-Bytes-Used", str(sum(row["size"] for row in rows))),
        ]
        query = parse_qs(environ.get("QUERY_STRING", ""))
        marker = query.get("marker", [""])[0]
        prefix = query.get("prefix", [""])[0]
        entries = [
            entry
            for entry in entries
            if entry["name"] > marker and entry["name"].startswith(prefix)
        ]
        return _listing(environ, start_response, entries, headers)

    # -- objects --------------------

    def _object(
        self, environ: WSGIEnvironment, start_response: StartResponse, place: tuple[str, str, str]
    ) -> list[bytes]:
        method = environ["REQUEST_METHOD"]
        if method == "PUT":
            return self._put(environ, start_response, place)
        row = self._store.row(
            "SELECT data, type, etag, modified FROM hotplate_object"
            " WHERE account = ? AND container = ? AND name = ?",
            *place,
        )
        if row is None:
            return _answer(start_response, *_NOT_FOUND)
        if method == "DELETE":
            self._delete(place)
            return _answer(start_response, "204 No Content", b"")
        if method not in ("GET", "HEAD"):
            return _answer(start_response, "405 Method Not Allowed", b"")
        data = bytes(row["data"])
        start_response(
            "200 OK",
            [
                ("Content-Type", row["type"]),
                ("Content-Length", str(len(data))),
                ("Etag", row["etag"]),
                # Swift rounds up, so that an object is never older than it says.
                ("Last-Modified", formatdate(int(row["modified"]) + 1, usegmt=True)),
                ("X-Timestamp", f"{row['modified']:.5f}"),
                ("Accept-Ranges", "bytes"),
            ],
        )
        return [data]

    def _put(
        self, environ: WSGIEnvironment, start_response: StartResponse, place: tuple[str, str, str]
    ) -> list[bytes]:
        account, container, _name = place
        headers = self._headers(account, container)
        if not self._store.row(
            "SELECT name FROM hotplate_container WHERE account = ? AND name = ?",
            account,
            container,
        ):
            return _answer(start_response, *_NOT_FOUND)
        if self._is_full(account):
            return _answer(start_response, "413 Request Entity Too Large", b"Upload exceeds quota.")
        data = _body(environ)
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        versions = unquote(headers.get("x-versions-location", ""))
        if versions:
            self._keep_version(place, versions)
        self._store.write(
            "INSERT OR REPLACE INTO hotplate_object VALUES (?, ?, ?, ?, ?, ?, ?)",
            *place,
            data,
            environ.get("CONTENT_TYPE") or "application/octet-stream",
            etag,
            time.time(),
        )
        start_response(
            "201 Created",
            [
                ("Content-Type", "text/html; charset=UTF-8"),
                ("Content-Length", "0"),
                ("Etag", etag),
                ("Last-Modified", formatdate(time.time() + 1, usegmt=True)),
            ],
        )
        return [b""]

    def _is_full(self, account: str) -> bool:
        row = self._store.row(
            "SELECT sum(length(data)) AS size FROM hotplate_object WHERE account = ?", account
        )
        return row is not None and (row["size"] or 0) > limits.STORED

    def _keep_version(self, place: tuple[str, str, str], versions: str) -> None:
        """Move the present object to where its older versions are (``X-Versions-Location``)."""
        account, container, name = place
        # The length as three hexadecimal digits, the name, a slash and a time that sorts.
        kept = f"{len(name):03x}{name}/{time.time():016.5f}"
        self._store.write(
            "UPDATE hotplate_object SET container = ?, name = ?"
            " WHERE account = ? AND container = ? AND name = ?",
            versions,
            kept,
            account,
            container,
            name,
        )

    def _delete(self, place: tuple[str, str, str]) -> None:
        account, container, name = place
        self._store.write(
            "DELETE FROM hotplate_object WHERE account = ? AND container = ? AND name = ?", *place
        )
        versions = unquote(self._headers(account, container).get("x-versions-location", ""))
        if not versions:
            return
        prefix = f"{len(name):03x}{name}/"
        newest = self._store.row(
            "SELECT name FROM hotplate_object WHERE account = ? AND container = ?"
            " AND substr(name, 1, ?) = ? ORDER BY name DESC",
            account,
            versions,
            len(prefix),
            prefix,
        )
        if newest is not None:
            self._store.write(
                "UPDATE hotplate_object SET container = ?, name = ?"
                " WHERE account = ? AND container = ? AND name = ?",
                container,
                name,
                account,
                versions,
                newest["name"],
            )


def app(
    store: Store,
    identity: Identity,
    *,
    skew: Callable[[], float] = lambda: 0.0,
    lift_limits: bool = False,
) -> WSGIApp:
    """Swift as a WSGI application."""
    return SwiftApi(store, identity, skew=skew, lift_limits=lift_limits)


def too_large(environ: WSGIEnvironment, container: str, name: str) -> str:
    """Why Swift refuses a name or the metadata of a request, "" when it does not.

    Source: ``check_metadata``, ``check_container_format`` and ``check_object_creation`` in
    ``swift/common/constraints.py``, and the container controller of its proxy.
    """
    if len(container.encode()) > limits.SWIFT_CONTAINER_NAME:
        return f"Container name length of {len(container)} longer than 256"
    if len(name.encode()) > limits.SWIFT_OBJECT_NAME:
        return f"Object name length of {len(name)} longer than {limits.SWIFT_OBJECT_NAME}"
    meta = {
        key.partition("_META_")[2]: value
        for key, value in environ.items()
        if re.match("HTTP_X_(ACCOUNT|CONTAINER|OBJECT)_META_", key)
    }
    if len(meta) > limits.SWIFT_META_COUNT:
        return f"Too many metadata items; max {limits.SWIFT_META_COUNT}"
    for key, value in meta.items():
        if len(key) > limits.SWIFT_META_NAME:
            return f"Metadata name too long: {key[:64]}"
        if len(value) > limits.SWIFT_META_VALUE:
            return f"Metadata value longer than {limits.SWIFT_META_VALUE}: {key}"
    if sum(len(key) + len(value) for key, value in meta.items()) > limits.SWIFT_META_OVERALL:
        return f"Total metadata too large; max {limits.SWIFT_META_OVERALL}"
    return ""


def _signature(text: str) -> str:
    """Return a signature in hexadecimal, whether it came so or as ``sha512:<URL-safe base64>``."""
    _, colon, encoded = text.partition(":")
    if not colon:
        return text.lower()
    try:
        return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
    except ValueError:
        return ""


def _body(environ: WSGIEnvironment) -> bytes:
    data: bytes = environ["wsgi.input"].read()
    return data


def _answer(start_response: StartResponse, status: str, body: bytes) -> list[bytes]:
    start_response(
        status,
        [("Content-Type", "text/html; charset=UTF-8"), ("Content-Length", str(len(body)))],
    )
    return [body]


def _listing(
    environ: WSGIEnvironment,
    start_response: StartResponse,
    entries: list[dict[str, object]],
    headers: list[tuple[str, str]],
) -> list[bytes]:
    as_json = "format=json" in environ.get("QUERY_STRING", "")
    if as_json:
        body = json.dumps(entries).encode()
    else:
        body = "".join(f"{entry['name']}\n" for entry in entries).encode()
    status = "200 OK" if body and environ["REQUEST_METHOD"] == "GET" else "204 No Content"
    kind = "application/json" if as_json else "text/plain; charset=utf-8"
    start_response(status, [*headers, ("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]
