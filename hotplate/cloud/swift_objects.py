"""An object of Swift: its headers, ranges, conditions and listings.

The rules are those of ``swift/obj/server.py``, ``swift/common/constraints.py`` and of swob, Swift's
own WebOb.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate, parsedate_to_datetime
from typing import Any
from urllib.parse import quote, unquote
from wsgiref.types import WSGIEnvironment

META = "x-object-meta-"
MANIFEST = "x-object-manifest"
DELETE_AT = "x-delete-at"
KEPT = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "expires",
        "x-robots-tag",
        DELETE_AT,
        MANIFEST,
    }
)
"""Headers stored beside an object's metadata (``allowed_headers`` of the object server)."""

SEGMENTS = 64 << 20
"""Maximum bytes of a dynamic large object, because a response is built in memory."""
LISTED = 10_000
"""Maximum number of entries in a listing (``container_listing_limit``)."""
TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})

# "symlink=get" is not among them: swiftclient sends it with each deletion of an object.
NOT_HERE_QUERIES = frozenset({"bulk-delete", "extract-archive", "path", "version-id", "versions"})
NOT_HERE_HEADERS = frozenset(
    {
        "x-container-sync-key",
        "x-container-sync-to",
        "x-container-write",
        "x-copy-from-account",
        "x-destination-account",
        "x-detect-content-type",
        "x-history-location",
        "x-if-delete-at",
        "x-storage-policy",
        "x-symlink-target",
        "x-versions-enabled",
    }
)
"""Headers of Swift that would have no effect here."""
READ_ACLS = frozenset({".r:*", ".rlistings"})
"""The accepted ACLs: there is one project, so access can only be given to everybody."""


class SwiftError(Exception):
    """The request is refused.

    :param status: such as ``400 Bad Request``; ``str()`` is the body.
    """

    def __init__(self, status: str, body: str, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(body)
        self.status = status
        self.headers = tuple(headers)


def bad_request(text: str) -> SwiftError:
    """Return the error for an invalid request."""
    return SwiftError("400 Bad Request", text)


def check_supported(environ: WSGIEnvironment, query: Mapping[str, list[str]]) -> None:
    """Refuse headers and parameters that would have no effect.

    :raises SwiftError: 400.
    """
    asked = headers_of(environ)
    for name in sorted(NOT_HERE_HEADERS & asked.keys()):
        raise bad_request(f"This object store does not support the header {name.title()}.\n")
    for name in sorted(NOT_HERE_QUERIES & query.keys()):
        raise bad_request(f"This object store does not support the query {name}.\n")
    if {"put", "delete"} & {*query.get("multipart-manifest", ())}:
        raise bad_request(
            "This object store does not support static large objects: upload a dynamic one, with "
            "X-Object-Manifest.\n"
        )
    acl = {each.strip() for each in asked.get("x-container-read", "").split(",")} - {""}
    if not acl <= READ_ACLS:
        raise bad_request(
            f"X-Container-Read may be {' and '.join(sorted(READ_ACLS))} here, not "
            f"'{asked['x-container-read'][:100]}'.\n"
        )


@dataclass(frozen=True)
class StoredObject:
    """An object.

    :param modified: seconds since the epoch.
    :param headers: its metadata and other stored headers, by name in lower case.
    """

    data: bytes
    type: str
    etag: str
    modified: float
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_expired(self) -> bool:
        """True when its ``X-Delete-At`` has passed."""
        return has_expired(self.headers)

    @property
    def last_modified(self) -> int:
        """The time of its last change, rounded up as in Swift: the object is never newer."""
        return int(self.modified) + 1

    def shown(self) -> list[tuple[str, str]]:
        """Return its headers, except those of its content."""
        return [
            *((name.title(), value) for name, value in self.headers.items()),
            ("Last-Modified", formatdate(self.last_modified, usegmt=True)),
            ("X-Timestamp", f"{self.modified:.5f}"),
            ("Accept-Ranges", "bytes"),
        ]


def has_expired(headers: Mapping[str, str]) -> bool:
    """Return True when an object with these headers has expired."""
    return DELETE_AT in headers and int(headers[DELETE_AT]) <= time.time()


def headers_of(environ: WSGIEnvironment) -> dict[str, str]:
    """Return the headers of a request, by name in lower case."""
    return {
        name.removeprefix("HTTP_").replace("_", "-").lower(): value
        for name, value in environ.items()
        if name.startswith("HTTP_")
    }


def kept_headers(environ: WSGIEnvironment) -> dict[str, str]:
    """Return the headers of a PUT or POST that are stored with an object.

    :raises SwiftError: 400, for an invalid time or manifest.
    """
    asked = headers_of(environ)
    kept = {
        name: value
        for name, value in asked.items()
        if value and (name in KEPT or name.startswith(META))
    }
    now = int(time.time())
    if after := asked.get("x-delete-after"):
        kept[DELETE_AT] = str(now + _seconds("X-Delete-After", after))
    if DELETE_AT in kept and _seconds("X-Delete-At", kept[DELETE_AT]) <= now:
        raise bad_request(f"{'X-Delete-After' if after else 'X-Delete-At'} in past")
    if MANIFEST in kept:
        container, _, prefix = segments(kept[MANIFEST])
        if not container or not prefix or set("?&") & set(kept[MANIFEST]):
            raise bad_request("X-Object-Manifest must be in the format container/prefix")
    return kept


def segments(manifest: str) -> tuple[str, str, str]:
    """Return the container of a manifest's segments, a slash, and the prefix of their names."""
    return unquote(manifest).lstrip("/").partition("/")


def _seconds(name: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,12}", text):
        raise bad_request(f"Non-integer {name}")
    return int(text)


# -- responses --------------------


def byte_range(environ: WSGIEnvironment, size: int, etag: str) -> tuple[int, int] | None:
    """Return the start and end of the requested range; None for the whole object.

    A request for several ranges gets the whole object, as HTTP allows.

    :raises SwiftError: 416, when the range is outside the object.
    """
    if environ.get("HTTP_IF_RANGE", etag).strip('"') != etag:
        return None
    match = re.fullmatch("bytes=([0-9]{0,18})-([0-9]{0,18})", environ.get("HTTP_RANGE", ""))
    if match is None or match[0] == "bytes=-":
        return None
    if not match[1]:
        start, end = max(0, size - int(match[2])), size
    else:
        start, end = int(match[1]), min(size, int(match[2] or size) + 1)
        if match[2] and int(match[2]) < start:
            return None
    if start >= size or start >= end:
        raise SwiftError(
            "416 Requested Range Not Satisfiable",
            "<html><h1>Requested Range Not Satisfiable</h1><p>The Range requested is not "
            "available.</p></html>",
            [("Content-Range", f"bytes */{size}")],
        )
    return start, end


def failed_condition(environ: WSGIEnvironment, stored: StoredObject, etag: str) -> str:
    """Return the error status of a GET or HEAD whose conditions do not hold, "" when they do."""

    def names(header: str) -> bool:
        tags = {each.strip().strip('"') for each in environ[header].split(",")}
        return bool(tags & {"*", etag.strip('"')})

    if "HTTP_IF_MATCH" in environ and not names("HTTP_IF_MATCH"):
        return "412 Precondition Failed"
    if "HTTP_IF_NONE_MATCH" in environ and names("HTTP_IF_NONE_MATCH"):
        return "304 Not Modified"
    unmodified = _moment(environ.get("HTTP_IF_UNMODIFIED_SINCE", ""))
    if unmodified is not None and stored.last_modified > unmodified:
        return "412 Precondition Failed"
    modified = _moment(environ.get("HTTP_IF_MODIFIED_SINCE", ""))
    if modified is not None and stored.last_modified <= modified:
        return "304 Not Modified"
    return ""


def _moment(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def by_temp_url(
    headers: Sequence[tuple[str, str]], query: Mapping[str, list[str]], name: str
) -> list[tuple[str, str]]:
    """Return the headers of an object for a user of a TempURL (``tempurl`` of Swift).

    They omit non-public metadata, and make a browser save the object.
    """
    private = [each for each in headers if not _is_private(each[0])]
    present = [value for header, value in private if header == "Content-Disposition"]
    kept = [each for each in private if each[0] not in ("Content-Disposition", "Expires")]
    filename = query.get("filename", [""])[0]
    kind = "inline" if "inline" in query else "attachment"
    if kind == "inline" and not filename:
        disposition = kind
    elif present and not filename:
        disposition = present[0]
    else:
        filename = filename or name.rstrip("/").rpartition("/")[2]
        plain = quote(filename, safe=" /")
        disposition = f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(filename)}"
    expires = int(query["temp_url_expires"][0])
    # The latest time that can be formatted as a date.
    moment = formatdate(min(expires, 253402300799), usegmt=True)
    return [*kept, ("Content-Disposition", disposition), ("Expires", moment)]


def _is_private(header: str) -> bool:
    name = header.lower()
    return name.startswith(META) and not name.startswith(META + "public-")


# -- listings --------------------


def listing_is_json(environ: WSGIEnvironment, query: Mapping[str, list[str]]) -> bool:
    """Return True when a listing is JSON rather than text; the query overrides ``Accept``.

    :raises SwiftError: 406 for XML and other unsupported types.
    """
    wanted = query.get("format", [""])[0].lower()
    if wanted and wanted != "xml":
        return wanted == "json"
    asked = "application/xml" if wanted else environ.get("HTTP_ACCEPT") or "*/*"
    for each in sorted(asked.split(","), key=_quality, reverse=True):
        kind = each.partition(";")[0].strip().lower()
        if kind in ("application/json", "application/*"):
            return True
        if kind in ("text/plain", "text/*", "*/*", "*"):
            return False
    raise SwiftError(
        "406 Not Acceptable",
        "<html><h1>Not Acceptable</h1><p>Listings are application/json or text/plain here.</p>"
        "</html>",
    )


def _quality(accepted: str) -> float:
    match = re.search(r";\s*q=([0-9.]{1,5})\s*(;|$)", accepted)
    try:
        return float(match[1]) if match else 1.0
    except ValueError:
        return 0.0


def listed(
    entries: Sequence[dict[str, Any]], query: Mapping[str, list[str]]
) -> list[dict[str, Any]]:
    """Return the requested entries of a listing, each with a ``name`` or a ``subdir``.

    :raises SwiftError: 412 for a limit above the maximum.
    """

    def one(name: str) -> str:
        return query.get(name, [""])[0]

    limit = int(one("limit")) if re.fullmatch("[0-9]{1,18}", one("limit")) else LISTED
    if limit > LISTED:
        raise SwiftError("412 Precondition Failed", f"Maximum limit is {LISTED}")
    chosen = _by_delimiter(entries, one("prefix"), one("delimiter"))
    low, high = one("marker"), one("end_marker")
    if one("reverse").lower() in TRUE:
        chosen.reverse()
        low, high = high, low
    kept = [each for each in chosen if name_of(each) > low and (not high or name_of(each) < high)]
    return kept[:limit]


def name_of(entry: Mapping[str, Any]) -> str:
    """Return the name of an entry of a listing."""
    return str(entry.get("name") or entry["subdir"])


def _by_delimiter(
    entries: Sequence[dict[str, Any]], prefix: str, delimiter: str
) -> list[dict[str, Any]]:
    chosen: list[dict[str, Any]] = []
    find: Callable[[str], int] = lambda name: name.find(delimiter, len(prefix))  # noqa: E731
    for each in entries:
        name = each["name"]
        if not name.startswith(prefix):
            continue
        end = find(name) if delimiter else -1
        if end < 0:
            chosen.append(each)
            continue
        subdir = name[: end + len(delimiter)]
        if not chosen or chosen[-1].get("subdir") != subdir:
            chosen.append({"subdir": subdir})
    return chosen
