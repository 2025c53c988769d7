"""An object store with TempURLs that answers as Swift's ``tempurl`` and ``proxy`` do.

Heat's own swiftclient uses it with a token; a guest uses only a signed URL.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, unquote
from wsgiref.types import StartResponse, WSGIEnvironment

from hotplate.cloud import swift_objects
from hotplate.cloud.database.store import Store
from hotplate.cloud.http import limits
from hotplate.cloud.http.gateway import WSGIApp
from hotplate.cloud.keystone.identity import Identity, IdentityError
from hotplate.cloud.swift_objects import MANIFEST, StoredObject, SwiftError, bad_request

#: Length of the hexadecimal signature -> its hash function.
_DIGESTS = {40: "sha1", 64: "sha256", 128: "sha512"}
#: method -> other methods whose signature also allows it.
_ALSO = {"HEAD": ("GET", "PUT", "POST", "DELETE")}

_UNAUTHORIZED = (
    "401 Unauthorized",
    b"<html><h1>Unauthorized</h1><p>This server could not verify that you are authorized to "
    b"access the document you requested.</p></html>",
)
_CONTAINER_HEADERS = frozenset({"x-container-read", "x-versions-location"})
"""Headers of a container that are stored beside its metadata."""
_NOT_BY_TEMP_URL = ("HTTP_X_OBJECT_MANIFEST", "HTTP_X_COPY_FROM")
"""Headers with which the URL of one object would reach others (``tempurl`` of Swift)."""
_BAD_TEMPURL = ("401 Unauthorized", b"401 Unauthorized: Temp URL invalid\n")
_NOT_FOUND = (
    "404 Not Found",
    b"<html><h1>Not Found</h1><p>The resource could not be found.</p></html>",
)


class SwiftApi:
    """Swift's WSGI application."""

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
        transaction = f"tx{uuid.uuid4().hex[:21]}-{int(time.time()):010x}"

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            more = [(each, transaction) for each in ("X-Trans-Id", "X-Openstack-Request-Id")]
            return start_response(status, [*headers, *more], *rest)

        try:
            return self._respond(environ, start)
        except SwiftError as error:
            return _answer(start, error.status, str(error).encode(), error.headers)

    def _respond(self, environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        parts = path.split("/", 4)
        if len(parts) < 3 or parts[1] != "v1" or not parts[2].startswith("AUTH_"):
            return _answer(start_response, *_NOT_FOUND)
        account = parts[2]
        container = parts[3] if len(parts) > 3 else ""
        name = parts[4] if len(parts) > 4 else ""
        refusal = self._refusal(environ, path, account, container, is_object=len(parts) == 5)
        if refusal is not None:
            return _answer(start_response, *refusal)
        writes = environ["REQUEST_METHOD"] in ("PUT", "POST") and not self._lift_limits
        if writes and (why := too_large(environ, container, name)):
            return _answer(start_response, "400 Bad Request", why.encode())
        swift_objects.check_supported(environ, _query(environ))
        if name:
            return self._object(environ, start_response, (account, container, name))
        if container:
            return self._container(environ, start_response, (account, container))
        return self._account(environ, start_response, account)

    # -- authorisation --------------------

    def _refusal(
        self,
        environ: WSGIEnvironment,
        path: str,
        account: str,
        container: str,
        *,
        is_object: bool,
    ) -> tuple[str, bytes] | None:
        query = _query(environ)
        if _is_temp_url(query):
            keys = self._temp_url_keys(account, container)
            if not (
                is_object and self._temp_url_is_good(environ["REQUEST_METHOD"], path, keys, query)
            ):
                return _BAD_TEMPURL
            for each in _NOT_BY_TEMP_URL:
                if each in environ:
                    name = each.removeprefix("HTTP_").replace("_", "-").lower()
                    text = f"The header '{name}' is not allowed in this tempurl"
                    return ("400 Bad Request", text.encode())
            return None
        try:
            grant = self._identity.read_token(environ.get("HTTP_X_AUTH_TOKEN", ""))
        except IdentityError:
            acl = self._headers(account, container).get("x-container-read", "") if container else ""
            needed = ".r:*" if is_object else ".rlistings"
            if environ["REQUEST_METHOD"] in ("GET", "HEAD") and needed in acl.split(","):
                return None
            return _UNAUTHORIZED
        if account != f"AUTH_{grant.project}":
            return ("403 Forbidden", b"<html><h1>Forbidden</h1></html>")
        return None

    def _temp_url_keys(self, account: str, container: str) -> list[str]:
        """Return the keys that may sign a TempURL: the account's and the container's."""
        places = {"account": self._headers(account), "container": self._headers(account, container)}
        return [
            key
            for level, headers in places.items()
            for number in ("", "-2")
            if (key := headers.get(f"x-{level}-meta-temp-url-key{number}"))
        ]

    def _temp_url_is_good(
        self, method: str, path: str, keys: list[str], query: dict[str, list[str]]
    ) -> bool:
        given = _signature(query.get("temp_url_sig", [""])[0])
        expires = query.get("temp_url_expires", [""])[0]
        digest = _DIGESTS.get(len(given))
        # Longer times do not fit into Swift's own integers.
        if digest is None or not re.fullmatch("[0-9]{1,18}", expires):
            return False
        if int(expires) <= time.time() + self._skew():
            return False
        for key in keys:
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
        """Store metadata; an empty value or ``X-Remove-`` deletes an entry."""
        self._check_room(account)
        level = "container" if container else "account"
        with self._store.transaction():
            kept = {"x-timestamp": f"{time.time():.5f}", **self._headers(account, container)}
            for header, value in swift_objects.headers_of(environ).items():
                name = header.replace("x-remove-", "x-", 1)
                own = container and name in _CONTAINER_HEADERS
                if not own and not name.startswith(f"x-{level}-meta-"):
                    continue
                if value and header == name:
                    kept[name] = value
                else:
                    kept.pop(name, None)
            # As Swift does (validate_metadata in swift/common/db.py), over all that was ever sent.
            if not self._lift_limits and (why := _too_much_metadata(kept)):
                raise bad_request(why)
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
        if method == "POST":
            self._keep_headers(environ, account)
            return _answer(start_response, "204 No Content", b"")
        if method not in ("GET", "HEAD"):
            return _answer(start_response, "405 Method Not Allowed", b"")
        entries = [
            {
                "name": row["name"],
                "count": row["count"],
                "bytes": row["size"] or 0,
                "last_modified": _listed_time(
                    float(json.loads(row["headers"]).get("x-timestamp", 0))
                ),
            }
            for row in self._store.rows(
                "SELECT c.name, c.headers, count(o.name) AS count, sum(length(o.data)) AS size"
                " FROM hotplate_container AS c LEFT JOIN hotplate_object AS o"
                " ON o.account = c.account AND o.container = c.name"
                " WHERE c.account = ? AND c.name != '' GROUP BY c.name ORDER BY c.name",
                account,
            )
        ]
        shown = {"x-timestamp": f"{time.time():.5f}", **self._headers(account)}
        headers = [
            *((name.title(), value) for name, value in shown.items()),
            ("X-Account-Container-Count", str(len(entries))),
            ("X-Account-Object-Count", str(sum(each["count"] for each in entries))),
            ("X-Account-Bytes-Used", str(sum(each["bytes"] for each in entries))),
        ]
        return _listing(environ, start_response, entries, headers)

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
        self._drop_expired(*place)
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
                "last_modified": _listed_time(row["modified"]),
            }
            for row in rows
        ]
        headers = [
            *((name.title(), value) for name, value in self._headers(*place).items()),
            ("X-Container-Object-Count", str(len(rows))),
            ("X-Container-Bytes-Used", str(sum(row["size"] for row in rows))),
        ]
        return _listing(environ, start_response, entries, headers)

    # -- objects --------------------

    def _object(
        self, environ: WSGIEnvironment, start_response: StartResponse, place: tuple[str, str, str]
    ) -> list[bytes]:
        method = environ["REQUEST_METHOD"]
        if method == "COPY":
            place = self._copied(environ, place)
            method = "PUT"
        if method == "PUT":
            return self._put(environ, start_response, place)
        stored = self._look_up(place)
        if stored is None:
            return _answer(start_response, *_NOT_FOUND)
        if method == "DELETE":
            self._delete(place)
            return _answer(start_response, "204 No Content", b"")
        if method == "POST":
            return self._post(environ, start_response, place)
        if method not in ("GET", "HEAD"):
            return _answer(start_response, "405 Method Not Allowed", b"")
        return self._get(environ, start_response, place, stored)

    def _look_up(self, place: tuple[str, str, str]) -> StoredObject | None:
        """Return an object, or None; remove it first when it has expired."""
        row = self._store.row(
            "SELECT data, type, etag, modified, headers FROM hotplate_object"
            " WHERE account = ? AND container = ? AND name = ?",
            *place,
        )
        if row is None:
            return None
        stored = _of_row(row)
        if stored.has_expired:
            self._drop(place)
            return None
        return stored

    def _content(
        self, place: tuple[str, str, str], stored: StoredObject, query: dict[str, list[str]]
    ) -> tuple[bytes, str]:
        """Return an object's content and its tag; a manifest's content is that of its segments."""
        manifest = stored.headers.get(MANIFEST, "")
        if not manifest or "get" in query.get("multipart-manifest", ()):
            return stored.data, stored.etag
        account, own_container, own_name = place
        container, _, prefix = swift_objects.segments(manifest)
        self._drop_expired(account, container)
        those = (
            " FROM hotplate_object WHERE account = ? AND container = ?"
            " AND substr(name, 1, ?) = ? AND (container, name) != (?, ?) ORDER BY name"
        )
        values = (account, container, len(prefix), prefix, own_container, own_name)
        size = sum(
            row["size"] for row in self._store.rows("SELECT length(data) AS size" + those, *values)
        )
        if size > swift_objects.SEGMENTS:
            raise SwiftError(
                "413 Request Entity Too Large",
                f"The segments have {size} bytes together; {swift_objects.SEGMENTS} are answered "
                "at most.",
            )
        parts = self._store.rows("SELECT data, etag" + those, *values)
        tags = "".join(row["etag"] for row in parts).encode()
        tag = hashlib.md5(tags, usedforsecurity=False).hexdigest()
        return b"".join(bytes(row["data"]) for row in parts), f'"{tag}"'

    def _get(
        self,
        environ: WSGIEnvironment,
        start_response: StartResponse,
        place: tuple[str, str, str],
        stored: StoredObject,
    ) -> list[bytes]:
        query = _query(environ)
        data, etag = self._content(place, stored, query)
        headers = [("Content-Type", stored.type), ("Etag", etag), *stored.shown()]
        if _is_temp_url(query):
            headers = swift_objects.by_temp_url(headers, query, place[2])
        if failed := swift_objects.failed_condition(environ, stored, etag):
            start_response(failed, [*headers, ("Content-Length", "0")])
            return [b""]
        part = swift_objects.byte_range(environ, len(data), etag.strip('"'))
        status = "200 OK"
        if part is not None:
            start, end = part
            status = "206 Partial Content"
            headers.append(("Content-Range", f"bytes {start}-{end - 1}/{len(data)}"))
            data = data[start:end]
        start_response(status, [*headers, ("Content-Length", str(len(data)))])
        return [data]

    def _post(
        self, environ: WSGIEnvironment, start_response: StartResponse, place: tuple[str, str, str]
    ) -> list[bytes]:
        """Replace an object's metadata."""
        self._check_room(place[0])
        self._store.write(
            "UPDATE hotplate_object SET headers = ?, type = coalesce(?, type), modified = ?"
            " WHERE account = ? AND container = ? AND name = ?",
            json.dumps(swift_objects.kept_headers(environ)),
            environ.get("CONTENT_TYPE") or None,
            time.time(),
            *place,
        )
        return _answer(start_response, "202 Accepted", b"")

    @staticmethod
    def _copied(environ: WSGIEnvironment, place: tuple[str, str, str]) -> tuple[str, str, str]:
        """Turn a COPY into a PUT; return the destination."""
        account, container, name = place
        wanted = environ.get("HTTP_DESTINATION", "")
        to, _, new = unquote(wanted).lstrip("/").partition("/")
        if not to or not new:
            raise SwiftError(
                "412 Precondition Failed",
                "Destination header must be of the form <container name>/<object name>",
            )
        environ["HTTP_X_COPY_FROM"] = f"{container}/{name}"
        return account, to, new

    def _source(self, environ: WSGIEnvironment, place: tuple[str, str, str]) -> StoredObject | None:
        """Return the object that a PUT copies, with its segments joined; None when it copies none.

        :raises SwiftError: 404, when it does not exist.
        """
        wanted = environ.get("HTTP_X_COPY_FROM")
        if wanted is None:
            return None
        text = wanted if environ["REQUEST_METHOD"] == "COPY" else unquote(wanted)
        container, _, name = text.lstrip("/").partition("/")
        if not container or not name:
            raise SwiftError(
                "412 Precondition Failed",
                "X-Copy-From header must be of the form <container name>/<object name>",
            )
        source = (place[0], container, name)
        stored = self._look_up(source)
        if stored is None:
            raise SwiftError(_NOT_FOUND[0], _NOT_FOUND[1].decode())
        data, _ = self._content(source, stored, _query(environ))
        whole = "get" not in _query(environ).get("multipart-manifest", ())
        headers = {
            header: value
            for header, value in stored.headers.items()
            if not (whole and header == MANIFEST)
        }
        return StoredObject(data, stored.type, "", stored.modified, headers)

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
        self._check_room(account)
        source = self._source(environ, place)
        data = _body(environ) if source is None else source.data
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        kept = swift_objects.kept_headers(environ)
        kind = environ.get("CONTENT_TYPE", "")
        if source is not None:
            fresh = environ.get("HTTP_X_FRESH_METADATA", "").lower() in swift_objects.TRUE
            kept = {**({} if fresh else source.headers), **kept}
            kind = kind or source.type
        self._check_put(environ, place, etag)
        self._check_quota(headers, place, len(data))
        versions = unquote(headers.get("x-versions-location", ""))
        if versions:
            self._keep_version(place, versions)
        now = time.time()
        self._store.write(
            "INSERT OR REPLACE INTO hotplate_object"
            " (account, container, name, data, type, etag, modified, headers)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            *place,
            data,
            kind or "application/octet-stream",
            etag,
            now,
            json.dumps(kept),
        )
        start_response(
            "201 Created",
            [
                ("Content-Type", "text/html; charset=UTF-8"),
                ("Content-Length", "0"),
                ("Etag", etag),
                ("Last-Modified", formatdate(int(now) + 1, usegmt=True)),
            ],
        )
        return [b""]

    def _check_put(self, environ: WSGIEnvironment, place: tuple[str, str, str], etag: str) -> None:
        """Refuse an upload whose conditions do not hold.

        :raises SwiftError: 422 for another checksum, 412 when the object exists and must not.
        """
        given = environ.get("HTTP_ETAG", "").strip('"').lower()
        if given not in ("", etag):
            raise SwiftError(
                "422 Unprocessable Entity",
                "<html><h1>Unprocessable Entity</h1><p>Unable to process the contained "
                "instructions</p></html>",
            )
        unless = environ.get("HTTP_IF_NONE_MATCH")
        if unless is not None and unless.strip() != "*":
            raise bad_request("If-None-Match only supports *")
        if unless is not None and self._look_up(place) is not None:
            raise SwiftError("412 Precondition Failed", "")

    def _check_quota(self, headers: dict[str, str], place: tuple[str, str, str], size: int) -> None:
        """Refuse an object that exceeds the quota of its container (``container_quotas`` of Swift).

        :raises SwiftError: 413.
        """
        row = self._store.row(
            "SELECT count(*) AS count, sum(length(data)) AS size FROM hotplate_object"
            " WHERE account = ? AND container = ? AND name != ?",
            *place,
        )
        used = {"count": row["count"], "bytes": row["size"] or 0} if row else {}
        more = {"count": 1, "bytes": size}
        for name, present in used.items():
            most = headers.get(f"x-container-meta-quota-{name}", "")
            if most.isascii() and most.isdigit() and present + more[name] > int(most[:18]):
                raise SwiftError("413 Request Entity Too Large", "Upload exceeds quota.")

    def _drop_expired(self, account: str, container: str) -> None:
        """Remove the expired objects of a container."""
        rows = self._store.rows(
            "SELECT name, headers FROM hotplate_object"
            " WHERE account = ? AND container = ? AND headers LIKE '%\"x-delete-at\"%'",
            account,
            container,
        )
        for row in rows:
            if swift_objects.has_expired(json.loads(row["headers"])):
                self._drop((account, container, row["name"]))

    def _drop(self, place: tuple[str, str, str]) -> None:
        self._store.write(
            "DELETE FROM hotplate_object WHERE account = ? AND container = ? AND name = ?", *place
        )

    def _check_room(self, account: str) -> None:
        if self._store.stored("swift", account) > limits.STORED:
            raise SwiftError("413 Request Entity Too Large", "Upload exceeds quota.")

    def _keep_version(self, place: tuple[str, str, str], versions: str) -> None:
        """Move the present object to the container of older versions (``X-Versions-Location``)."""
        account, container, name = place
        # The length as three hexadecimal digits, the name, a slash and a sortable time.
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
        self._drop(place)
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
    """Return Swift as a WSGI application."""
    return SwiftApi(store, identity, skew=skew, lift_limits=lift_limits)


def too_large(environ: WSGIEnvironment, container: str, name: str) -> str:
    """Return why Swift refuses a name or the metadata of a request, "" when it accepts them.

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
    for key, value in meta.items():
        if len(key) > limits.SWIFT_META_NAME:
            return f"Metadata name too long: {key[:64]}"
        if len(value) > limits.SWIFT_META_VALUE:
            return f"Metadata value longer than {limits.SWIFT_META_VALUE}: {key}"
    for key, value in environ.items():
        if (key == "CONTENT_TYPE" or key.startswith("HTTP_")) and len(value) > limits.SWIFT_HEADER:
            return f"Header Line Too Long: {key[:64]}"
    return _too_much_metadata({f"-meta-{key}": value for key, value in meta.items()})


def _too_much_metadata(headers: Mapping[str, str]) -> str:
    """Return why Swift refuses the total metadata among headers, "" when it accepts it."""
    meta = {key.partition("-meta-")[2]: value for key, value in headers.items() if "-meta-" in key}
    if len(meta) > limits.SWIFT_META_COUNT:
        return f"Too many metadata items; max {limits.SWIFT_META_COUNT}"
    if sum(len(key) + len(value) for key, value in meta.items()) > limits.SWIFT_META_OVERALL:
        return f"Total metadata too large; max {limits.SWIFT_META_OVERALL}"
    return ""


def _signature(text: str) -> str:
    """Return a signature in hexadecimal, also when given as ``sha512:<URL-safe base64>``."""
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


def _query(environ: WSGIEnvironment) -> dict[str, list[str]]:
    return parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)


def _is_temp_url(query: dict[str, list[str]]) -> bool:
    return "temp_url_sig" in query or "temp_url_expires" in query


def _of_row(row: Any) -> StoredObject:
    return StoredObject(
        bytes(row["data"]), row["type"], row["etag"], row["modified"], json.loads(row["headers"])
    )


def _listed_time(seconds: float) -> str:
    """Return a time in the format of listings."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")


def _answer(
    start_response: StartResponse,
    status: str,
    body: bytes,
    headers: Sequence[tuple[str, str]] = (),
) -> list[bytes]:
    start_response(
        status,
        [
            ("Content-Type", "text/html; charset=UTF-8"),
            ("Content-Length", str(len(body))),
            *headers,
        ],
    )
    return [body]


def _listing(
    environ: WSGIEnvironment,
    start_response: StartResponse,
    entries: Sequence[dict[str, Any]],
    headers: list[tuple[str, str]],
) -> list[bytes]:
    query = _query(environ)
    as_json = swift_objects.listing_is_json(environ, query)
    chosen = swift_objects.listed(entries, query)
    if as_json:
        body = json.dumps(chosen).encode()
    else:
        body = "".join(f"{swift_objects.name_of(each)}\n" for each in chosen).encode()
    status = "200 OK" if body and environ["REQUEST_METHOD"] == "GET" else "204 No Content"
    kind = "application/json" if as_json else "text/plain"
    length = len(body) if environ["REQUEST_METHOD"] == "GET" else 0
    start_response(
        status,
        [*headers, ("Content-Type", f"{kind}; charset=utf-8"), ("Content-Length", str(length))],
    )
    return [body]
