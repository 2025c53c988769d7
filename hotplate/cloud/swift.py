"""An object store with TempURLs that answers as Swift's ``tempurl`` and ``proxy`` do.

Heat's own swiftclient uses it with a token; a guest uses only a signed URL.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import mimetypes
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from email.utils import formatdate
from typing import Any, TypeAlias
from urllib.parse import quote, unquote
from wsgiref.types import StartResponse, WSGIEnvironment

from webob import Request, Response, exc

from hotplate.cloud import swift_objects
from hotplate.cloud.database.store import Store
from hotplate.cloud.http import limits
from hotplate.cloud.http.rest import naive_time
from hotplate.cloud.keystone.identity import Identity, IdentityError
from hotplate.cloud.swift_objects import MANIFEST, POLICY, StoredObject, answer, refused

#: An object's account, container and name.
Place: TypeAlias = tuple[str, str, str]

#: Length of the hexadecimal signature -> its hash function.
_DIGESTS = {40: "sha1", 64: "sha256", 128: "sha512"}
#: method -> other methods whose signature also allows it.
_ALSO = {"HEAD": ("GET", "PUT", "POST", "DELETE")}

#: Headers of a container that are stored beside its metadata.
_CONTAINER_HEADERS = frozenset({"x-container-read", "x-versions-location"})
#: Headers with which the URL of one object would reach others (``tempurl`` of Swift).
_NOT_BY_TEMP_URL = ("x-object-manifest", "x-copy-from")
#: The answer to ``/info``: the limits, and the middlewares of which something is here.  Without
#: ``slo`` swiftclient uploads dynamic large objects.
_INFO = {
    "swift": {
        "version": "2.34.0",
        "max_file_size": limits.MAX_BODY["swift"],
        "max_meta_name_length": limits.SWIFT_META_NAME,
        "max_meta_value_length": limits.SWIFT_META_VALUE,
        "max_meta_count": limits.SWIFT_META_COUNT,
        "max_meta_overall_size": limits.SWIFT_META_OVERALL,
        "max_header_size": limits.SWIFT_HEADER,
        "max_object_name_length": limits.SWIFT_OBJECT_NAME,
        "max_container_name_length": limits.SWIFT_CONTAINER_NAME,
        "container_listing_limit": swift_objects.MAX_LISTED,
        "account_listing_limit": swift_objects.MAX_LISTED,
        "account_autocreate": True,
        "allow_account_management": False,
        "policies": [{"name": POLICY, "aliases": POLICY, "default": True}],
    },
    "container_quotas": {},
    "dlo": {},
    "tempurl": {
        "methods": ["GET", "HEAD", "PUT", "POST", "DELETE"],
        "allowed_digests": sorted(_DIGESTS.values()),
    },
    "versioned_writes": {"allowed_flags": ["x-versions-location"]},
}


class SwiftApi:
    """Swift's WSGI application."""

    def __init__(
        self,
        store: Store,
        identity: Identity,
        *,
        skew: Callable[[], float],
        lift_limits: bool,
    ) -> None:
        self._lift_limits = lift_limits
        self._store = store
        self._identity = identity
        self._skew = skew

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            response = self._answer(Request(environ))
        except exc.HTTPException as error:
            response = error
        # The form of Swift's generate_trans_id().
        transaction = f"tx{uuid.uuid4().hex[:21]}-{int(time.time()):010x}"
        # Also of answers without a body, as in Swift.
        response.headers.setdefault("Content-Type", "text/html; charset=UTF-8")
        response.headers["X-Trans-Id"] = transaction
        response.headers["X-Openstack-Request-Id"] = transaction
        body: Iterable[bytes] = response(environ, start_response)
        return body

    def _answer(self, request: Request) -> Response:
        # PEP 3333: a path's bytes come as latin-1 text.
        path = request.environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        if path == "/healthcheck":
            return Response(text="OK", content_type="text/plain")
        if path == "/info" and request.method in ("GET", "HEAD"):
            # For everybody, as in Swift (``expose_info``).
            return Response(json=_INFO)
        # Four slashes divide at most: the name of an object may contain more.
        parts = path.split("/", 4)
        if len(parts) < 3 or parts[1] != "v1" or not parts[2].startswith("AUTH_"):
            raise refused(404)
        account, container, name = (*parts[2:], "", "")[:3]
        self._check_access(request, path, account, container, is_object=len(parts) == 5)
        writes = request.method in ("PUT", "POST") and not self._lift_limits
        if writes and (why := too_large(request.environ, container, name)):
            raise refused(400, why)
        swift_objects.check_supported(request)
        if name:
            return self._object(request, (account, container, name))
        if container:
            return self._container(request, account, container)
        return self._account(request, account)

    # -- authorisation --------------------

    def _check_access(
        self, request: Request, path: str, account: str, container: str, *, is_object: bool
    ) -> None:
        # A TempURL is judged by its signature alone, whatever token comes with it.
        if swift_objects.is_temp_url(request):
            keys = self._temp_url_keys(account, container)
            if not (is_object and self._temp_url_is_good(request, path, keys)):
                raise refused(401, "401 Unauthorized: Temp URL invalid\n")
            for header in _NOT_BY_TEMP_URL:
                if header in request.headers:
                    raise refused(400, f"The header '{header}' is not allowed in this tempurl")
            return
        try:
            grant = self._identity.read_token(request.headers.get("X-Auth-Token", ""))
        except IdentityError:
            # Without a valid token the container's ACL may still let everybody read.
            acl = self._headers(account, container).get("x-container-read", "") if container else ""
            needed = ".r:*" if is_object else ".rlistings"
            if request.method in ("GET", "HEAD") and needed in acl.split(","):
                return
            raise refused(401) from None
        if account != f"AUTH_{grant.project}":
            raise refused(403, "<html><h1>Forbidden</h1></html>")

    def _temp_url_keys(self, account: str, container: str) -> list[str]:
        """Return the keys that may sign a TempURL: the account's and the container's."""
        places = {"account": self._headers(account), "container": self._headers(account, container)}
        return [
            key
            for level, headers in places.items()
            # Two keys, so that one can be replaced while URLs with the other are in use.
            for number in ("", "-2")
            if (key := headers.get(f"x-{level}-meta-temp-url-key{number}"))
        ]

    def _temp_url_is_good(self, request: Request, path: str, keys: list[str]) -> bool:
        given = _signature(request.GET.get("temp_url_sig", ""))
        expires = request.GET.get("temp_url_expires", "")
        digest = _DIGESTS.get(len(given))
        # Longer times do not fit into Swift's own integers.
        if digest is None or not re.fullmatch("[0-9]{1,18}", expires):
            return False
        if int(expires) <= time.time() + self._skew():
            return False
        prefix = request.GET.get("temp_url_prefix")
        if prefix is not None:
            # The signature is good for all objects whose names begin so.
            signed = f"{'/'.join(path.split('/')[:4])}/{prefix}"
            if not path.startswith(signed):
                return False
            path = f"prefix:{signed}"
        for key in keys:
            for allowed in (request.method, *_ALSO.get(request.method, ())):
                text = f"{allowed}\n{expires}\n{path}".encode()
                made = hmac.new(key.encode(), text, digest).hexdigest()
                if hmac.compare_digest(made.encode(), given.encode()):
                    return True
        return False

    # -- accounts and containers --------------------

    def _headers(self, account: str, container: str = "") -> dict[str, str]:
        row = self._store.first("hotplate_container", account=account, name=container)
        return dict(json.loads(row["headers"])) if row else {}

    def _has_container(self, account: str, container: str) -> bool:
        return self._store.first("hotplate_container", account=account, name=container) is not None

    def _keep_headers(self, request: Request, account: str, container: str = "") -> None:
        """Store metadata; an empty value or ``X-Remove-`` deletes an entry."""
        self._check_room(account)
        level = "container" if container else "account"
        with self._store.transaction():
            # The first timestamp stays: an existing one overrides the new one.
            kept = {"x-timestamp": f"{time.time():.5f}", **self._headers(account, container)}
            for header, value in swift_objects.headers_of(request).items():
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
                raise refused(400, why)
            self._store.insert("hotplate_container", account, container, json.dumps(kept))

    def _account(self, request: Request, account: str) -> Response:
        if request.method == "POST":
            self._keep_headers(request, account)
            return answer(204)
        if request.method not in ("GET", "HEAD"):
            return answer(405)
        entries = [
            {
                "name": row["name"],
                "count": row["count"],
                "bytes": row["size"] or 0,
                "last_modified": naive_time(
                    float(json.loads(row["headers"]).get("x-timestamp", 0))
                ),
            }
            # The row without a name has the headers of the account itself.  The join keeps
            # containers without objects, whose sum is NULL.
            for row in self._store.rows(
                "SELECT c.name, c.headers, count(o.name) AS count, sum(length(o.data)) AS size"
                " FROM hotplate_container AS c LEFT JOIN hotplate_object AS o"
                " ON o.account = c.account AND o.container = c.name"
                " WHERE c.account = ? AND c.name != '' GROUP BY c.name ORDER BY c.name",
                account,
            )
        ]
        usage = {
            "container-count": str(len(entries)),
            "object-count": str(sum(each["count"] for each in entries)),
            "bytes-used": str(sum(each["bytes"] for each in entries)),
        }
        headers = {
            "x-timestamp": f"{time.time():.5f}",
            **self._headers(account),
            **{f"x-account-{name}": value for name, value in usage.items()},
            **{f"x-account-storage-policy-{POLICY}-{name}": each for name, each in usage.items()},
        }
        return _listing(request, entries, headers)

    def _container(self, request: Request, account: str, container: str) -> Response:
        exists = self._has_container(account, container)
        if request.method == "PUT":
            self._keep_headers(request, account, container)
            # As Swift: 202 when the container was there already.
            return answer(202 if exists else 201)
        if not exists:
            raise refused(404)
        if request.method == "POST":
            self._keep_headers(request, account, container)
            return answer(204)
        # Expired objects do not count, nor do they keep a container from being deleted.
        self._drop_expired(account, container)
        entries = [
            {
                "name": row["name"],
                "bytes": row["size"],
                "hash": row["etag"],
                "content_type": row["type"],
                "last_modified": naive_time(row["modified"]),
            }
            for row in self._store.rows(
                "SELECT name, length(data) AS size, type, etag, modified FROM hotplate_object"
                " WHERE account = ? AND container = ? ORDER BY name",
                account,
                container,
            )
        ]
        if request.method == "DELETE":
            if entries:
                raise refused(409)
            self._store.delete("hotplate_container", account=account, name=container)
            return answer(204)
        if request.method not in ("GET", "HEAD"):
            return answer(405)
        headers = {
            **self._headers(account, container),
            "x-storage-policy": POLICY,
            "x-container-object-count": str(len(entries)),
            "x-container-bytes-used": str(sum(each["bytes"] for each in entries)),
        }
        return _listing(request, entries, headers)

    # -- objects --------------------

    def _object(self, request: Request, place: Place) -> Response:
        if request.method == "COPY":
            # Swift's ``copy`` middleware makes a PUT of it, too.
            account, container, name = place
            destination = _container_and_name(request, "Destination")
            return self._put(request, (account, *destination), copied=(container, name))
        if request.method == "PUT":
            copies = "X-Copy-From" in request.headers
            copied = _container_and_name(request, "X-Copy-From") if copies else None
            return self._put(request, place, copied=copied)
        stored = self._look_up(place)
        if request.method == "DELETE":
            self._delete(place)
            return answer(204)
        if request.method == "POST":
            return self._post(request, place)
        if request.method not in ("GET", "HEAD"):
            return answer(405)
        return self._get(request, place, stored)

    def _look_up(self, place: Place) -> StoredObject:
        """Return an object; remove it first when it has expired.

        :raises exc.HTTPException: 404, when there is none.
        """
        row = self._store.first("hotplate_object", **_columns(place))
        if row is None:
            raise refused(404)
        headers = json.loads(row["headers"])
        if swift_objects.has_expired(headers):
            self._drop(place)
            raise refused(404)
        return StoredObject(bytes(row["data"]), row["type"], row["etag"], row["modified"], headers)

    def _content(self, request: Request, place: Place, stored: StoredObject) -> tuple[bytes, str]:
        """Return an object's content and its tag; a manifest's content is that of its segments."""
        manifest = stored.headers.get(MANIFEST, "")
        if not manifest or request.GET.get("multipart-manifest") == "get":
            return stored.data, stored.etag
        account, own_container, own_name = place
        container, _, prefix = swift_objects.segments(manifest)
        self._drop_expired(account, container)
        # No LIKE, which ignores case and for which "%" and "_" in a prefix have a meaning.  The
        # manifest's own name may begin with the prefix, too.
        those = (
            " FROM hotplate_object WHERE account = ? AND container = ?"
            " AND substr(name, 1, ?) = ? AND (container, name) != (?, ?) ORDER BY name"
        )
        values = (account, container, len(prefix), prefix, own_container, own_name)
        # The sizes first, because the segments are joined in memory.
        sizes = self._store.rows("SELECT length(data) AS size" + those, *values)
        size = sum(row["size"] for row in sizes)
        if size > swift_objects.MAX_SEGMENTS:
            raise refused(
                413,
                f"The segments have {size} bytes together; {swift_objects.MAX_SEGMENTS} are "
                "answered at most.",
            )
        parts = self._store.rows("SELECT data, etag" + those, *values)
        # As Swift: the tag of a dynamic large object is made of its segments' tags, and quoted.
        tags = "".join(row["etag"] for row in parts).encode()
        tag = hashlib.md5(tags, usedforsecurity=False).hexdigest()
        return b"".join(bytes(row["data"]) for row in parts), f'"{tag}"'

    def _get(self, request: Request, place: Place, stored: StoredObject) -> Response:
        data, etag = self._content(request, place, stored)
        if "," in request.headers.get("Range", ""):
            # WebOb would answer the first of several ranges; HTTP allows to ignore them.
            del request.headers["Range"]
        # WebOb answers a range, and the conditions of a cache.
        response = Response(body=data, conditional_response=True)
        response.headers.update({"Content-Type": stored.type, "Etag": etag, **stored.shown()})
        if swift_objects.is_temp_url(request):
            swift_objects.show_by_temp_url(request, response, place[2])
        # WebOb's conditional response looks at If-None-Match and If-Modified-Since only.
        unmodified = request.if_unmodified_since
        if response.etag not in request.if_match or (
            unmodified and response.last_modified > unmodified
        ):
            raise refused(412, "")
        return response

    def _post(self, request: Request, place: Place) -> Response:
        """Replace an object's metadata."""
        self._check_room(place[0])
        # Without a Content-Type the object keeps its own.
        self._store.write(
            "UPDATE hotplate_object SET headers = ?, type = coalesce(?, type), modified = ?"
            " WHERE account = ? AND container = ? AND name = ?",
            json.dumps(swift_objects.kept_headers(request)),
            request.headers.get("Content-Type") or None,
            time.time(),
            *place,
        )
        return answer(202)

    def _source(self, request: Request, source: Place) -> StoredObject:
        """Return the object that a request copies, with its segments joined."""
        stored = self._look_up(source)
        data, _ = self._content(request, source, stored)
        whole = request.GET.get("multipart-manifest") != "get"
        headers = {
            header: value
            for header, value in stored.headers.items()
            if not (whole and header == MANIFEST)
        }
        return StoredObject(data, stored.type, "", stored.modified, headers)

    def _put(
        self, request: Request, place: Place, *, copied: tuple[str, str] | None = None
    ) -> Response:
        """Store an object, uploaded or copied from the container and name ``copied``."""
        account, container, _name = place
        if not self._has_container(account, container):
            raise refused(404)
        self._check_room(account)
        kept, kind = swift_objects.kept_headers(request), request.headers.get("Content-Type", "")
        about_copy = {}
        if copied is None:
            data: bytes = request.body
            if not kind or request.headers.get("X-Detect-Content-Type", "").lower() in (
                swift_objects.TRUE
            ):
                kind = mimetypes.guess_type(place[2])[0] or "application/octet-stream"
        else:
            source = self._source(request, (account, *copied))
            # A copy has the metadata of its source, unless the request asks for fresh metadata.
            data, kind = source.data, kind or source.type
            fresh = request.headers.get("X-Fresh-Metadata", "").lower() in swift_objects.TRUE
            kept = {**({} if fresh else source.headers), **kept}
            about_copy = {
                "x-copied-from": quote("/".join(copied)),
                "x-copied-from-account": quote(account),
                "x-copied-from-last-modified": source.shown()["Last-Modified"],
                **{name: value for name, value in kept.items() if swift_objects.META in name},
            }
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        self._check_put(request, place, etag)
        headers = self._headers(account, container)
        self._check_quota(headers, place, len(data))
        # The present object, before it is overwritten.
        if versions := unquote(headers.get("x-versions-location", "")):
            self._move(place, versions, f"{_version_prefix(place[2])}{time.time():016.5f}")
        now = time.time()
        self._store.insert("hotplate_object", *place, data, kind, etag, now, json.dumps(kept))
        # Rounded up, as in StoredObject.shown().
        modified = formatdate(int(now) + 1, usegmt=True)
        return answer(201, headers={"Etag": etag, "Last-Modified": modified, **about_copy})

    def _check_put(self, request: Request, place: Place, etag: str) -> None:
        """Refuse an upload whose conditions do not hold.

        :raises exc.HTTPException: 422 for another checksum, 412 when the object exists and must
            not.
        """
        if request.headers.get("Etag", "").strip('"').lower() not in ("", etag):
            raise refused(422)
        unless = request.headers.get("If-None-Match")
        if unless is None:
            return
        if unless.strip() != "*":
            raise refused(400, "If-None-Match only supports *")
        try:
            self._look_up(place)
        except exc.HTTPNotFound:
            return
        raise refused(412, "")

    def _check_quota(self, headers: dict[str, str], place: Place, size: int) -> None:
        """Refuse an object that exceeds the quota of its container (``container_quotas`` of Swift).

        :raises exc.HTTPException: 413.
        """
        # The object that is replaced does not count.
        row = self._store.row(
            "SELECT count(*) AS count, sum(length(data)) AS size FROM hotplate_object"
            " WHERE account = ? AND container = ? AND name != ?",
            *place,
        )
        assert row is not None
        for name, used in (("count", row["count"] + 1), ("bytes", (row["size"] or 0) + size)):
            most = headers.get(f"x-container-meta-quota-{name}", "")
            if most.isascii() and most.isdigit() and used > int(most[:18]):
                raise refused(413, "Upload exceeds quota.")

    def _drop_expired(self, account: str, container: str) -> None:
        """Remove the expired objects of a container."""
        # The text may also be a value: has_expired() looks into the JSON.
        rows = self._store.rows(
            "SELECT name, headers FROM hotplate_object"
            " WHERE account = ? AND container = ? AND headers LIKE '%\"x-delete-at\"%'",
            account,
            container,
        )
        for row in rows:
            if swift_objects.has_expired(json.loads(row["headers"])):
                self._drop((account, container, row["name"]))

    def _drop(self, place: Place) -> None:
        self._store.delete("hotplate_object", **_columns(place))

    def _move(self, place: Place, container: str, name: str) -> None:
        self._store.write(
            "UPDATE hotplate_object SET container = ?, name = ?"
            " WHERE account = ? AND container = ? AND name = ?",
            container,
            name,
            *place,
        )

    def _check_room(self, account: str) -> None:
        if self._store.stored("swift", account) > limits.STORED:
            raise refused(413, "Upload exceeds quota.")

    def _delete(self, place: Place) -> None:
        """Delete an object; its newest older version takes its place."""
        account, container, name = place
        self._drop(place)
        versions = unquote(self._headers(account, container).get("x-versions-location", ""))
        prefix = _version_prefix(name)
        # The times at the end of the names have one width, so the last name is the newest.
        newest = self._store.row(
            "SELECT name FROM hotplate_object WHERE account = ? AND container = ?"
            " AND substr(name, 1, ?) = ? ORDER BY name DESC",
            account,
            versions,
            len(prefix),
            prefix,
        )
        if newest is not None:
            self._move((account, versions, newest["name"]), container, name)


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


def _columns(place: Place) -> dict[str, str]:
    return dict(zip(("account", "container", "name"), place, strict=True))


def _signature(text: str) -> str:
    """Return a signature in hexadecimal, also when given as ``sha512:<URL-safe base64>``."""
    _, colon, encoded = text.partition(":")
    if not colon:
        return text.lower()
    try:
        return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
    except ValueError:
        return ""


def _container_and_name(request: Request, header: str) -> tuple[str, str]:
    """Return the container and the object that a header of a copy names."""
    given = unquote(request.headers.get(header, ""))
    container, _, name = given.lstrip("/").partition("/")
    if not container or not name:
        form = "<container name>/<object name>"
        raise refused(412, f"{header} header must be of the form {form}")
    return container, name


def _version_prefix(name: str) -> str:
    """Return the beginning of the names of an object's older versions, before a sortable time."""
    # As Swift's ``versioned_writes``: the length in hexadecimal, and the name.
    return f"{len(name):03x}{name}/"


def _listing(
    request: Request, entries: Sequence[dict[str, Any]], headers: Mapping[str, str]
) -> Response:
    kind = swift_objects.listing_type(request)
    chosen = swift_objects.listed(entries, request.GET)
    if kind == "application/json":
        body = json.dumps(chosen)
    else:
        body = "".join(f"{swift_objects.name_of(each)}\n" for each in chosen)
    # As Swift: 204 for an empty list of text; one of JSON has the body "[]".
    status = 200 if body and request.method == "GET" else 204
    response = answer(status, body if status == 200 else "", headers)
    response.headers["Content-Type"] = f"{kind}; charset=utf-8"
    return response
