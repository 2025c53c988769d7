"""An object of Swift: its headers, its TempURLs and listings.

The rules are those of ``swift/obj/server.py``, ``swift/common/constraints.py`` and of swob, a
variant of the WebOb that is used here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any
from urllib.parse import quote, unquote

from webob import Request, Response, exc
from webob.acceptparse import create_accept_header

META = "x-object-meta-"
MANIFEST = "x-object-manifest"
DELETE_AT = "x-delete-at"
#: Status -> the text of the page about it: all but the one of 406 are Swift's own.
_PAGES = {
    401: "This server could not verify that you are authorized to access the document you "
    "requested.",
    404: "The resource could not be found.",
    406: "Listings are application/json or text/plain here.",
    409: "There was a conflict when trying to complete your request.",
    422: "Unable to process the contained instructions",
}
#: Headers stored beside an object's metadata (``allowed_headers`` of the object server).
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

#: Maximum bytes of a dynamic large object, because a response is built in memory.
MAX_SEGMENTS = 64 << 20
#: Maximum number of entries in a listing (``container_listing_limit``).
MAX_LISTED = 10_000
#: The name of the only storage policy, which is Swift's own for it.
POLICY = "Policy-0"
TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})

# "symlink=get" is not among them: swiftclient sends it with each deletion of an object.
UNSUPPORTED_QUERIES = frozenset(
    {"bulk-delete", "extract-archive", "path", "version-id", "versions"}
)
#: Headers of Swift that would have no effect here.
UNSUPPORTED_HEADERS = frozenset(
    {
        "x-container-sync-key",
        "x-container-sync-to",
        "x-container-write",
        "x-copy-from-account",
        "x-destination-account",
        "x-history-location",
        "x-if-delete-at",
        "x-symlink-target",
        "x-versions-enabled",
    }
)
#: The accepted ACLs: there is one project, so access can only be given to everybody.
READ_ACLS = frozenset({".r:*", ".rlistings"})


def answer(status: int, body: str = "", headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with a page of HTML or nothing."""
    response = Response(status=status, body=body.encode(), content_type="text/html")
    response.headers.update({name.title(): value for name, value in (headers or {}).items()})
    return response


def refused(status: int, body: str | None = None) -> exc.HTTPException:
    """Return the error for a request that Swift refuses.

    :param body: None for Swift's page about the status.
    """
    kind = exc.status_map[status]
    if body is None:
        body = f"<html><h1>{kind.title}</h1><p>{_PAGES[status]}</p></html>"
    error: exc.HTTPException = kind(body=body.encode(), content_type="text/html")
    return error


def check_supported(request: Request) -> None:
    """Refuse headers and parameters that would have no effect.

    :raises exc.HTTPException: 400.
    """
    asked, query = headers_of(request), request.GET
    for name in sorted(UNSUPPORTED_HEADERS & asked.keys()):
        raise refused(400, f"This object store does not support the header {name.title()}.\n")
    policy = asked.get("x-storage-policy", "")
    if policy.lower() not in ("", POLICY.lower()):
        raise refused(400, f'Invalid X-Storage-Policy "{policy[:100]}"')
    for name in sorted(UNSUPPORTED_QUERIES & set(query)):
        raise refused(400, f"This object store does not support the query {name}.\n")
    if query.get("multipart-manifest") in ("put", "delete"):
        raise refused(
            400,
            "This object store does not support static large objects: upload a dynamic one, with "
            "X-Object-Manifest.\n",
        )
    acl = {each.strip() for each in asked.get("x-container-read", "").split(",")} - {""}
    if not acl <= READ_ACLS:
        raise refused(
            400,
            f"X-Container-Read may be {' and '.join(sorted(READ_ACLS))} here, not "
            f"'{asked['x-container-read'][:100]}'.\n",
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

    def shown(self) -> dict[str, str]:
        """Return its headers, except those of its content."""
        return {
            **{name.title(): value for name, value in self.headers.items()},
            # Rounded up as in Swift: the object is never newer.
            "Last-Modified": formatdate(int(self.modified) + 1, usegmt=True),
            "X-Timestamp": f"{self.modified:.5f}",
            "Accept-Ranges": "bytes",
        }


def has_expired(headers: Mapping[str, str]) -> bool:
    """Return True when an object with these headers has expired."""
    return DELETE_AT in headers and int(headers[DELETE_AT]) <= time.time()


def headers_of(request: Request) -> dict[str, str]:
    """Return the headers of a request, by name in lower case."""
    return {name.lower(): value for name, value in request.headers.items()}


def kept_headers(request: Request) -> dict[str, str]:
    """Return the headers of a PUT or POST that are stored with an object.

    :raises exc.HTTPException: 400, for an invalid time or manifest.
    """
    asked = headers_of(request)
    kept = {
        name: value
        for name, value in asked.items()
        # An object's metadata may be empty, in contrast to a container's.
        if (value and name in KEPT) or name.startswith(META)
    }
    now = int(time.time())
    # X-Delete-After overrides X-Delete-At.
    if after := asked.get("x-delete-after"):
        kept[DELETE_AT] = str(now + _seconds("X-Delete-After", after))
    if DELETE_AT in kept and _seconds("X-Delete-At", kept[DELETE_AT]) <= now:
        raise refused(400, f"{'X-Delete-After' if after else 'X-Delete-At'} in past")
    if MANIFEST in kept:
        container, _, prefix = segments(kept[MANIFEST])
        if not container or not prefix or set("?&") & set(kept[MANIFEST]):
            raise refused(400, "X-Object-Manifest must be in the format container/prefix")
    return kept


def segments(manifest: str) -> tuple[str, str, str]:
    """Return the container of a manifest's segments, a slash, and the prefix of their names."""
    return unquote(manifest).lstrip("/").partition("/")


def _seconds(name: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,12}", text):
        raise refused(400, f"Non-integer {name}")
    return int(text)


# -- TempURLs --------------------


def is_temp_url(request: Request) -> bool:
    """Return True when a request has the signature of a TempURL."""
    return "temp_url_sig" in request.GET or "temp_url_expires" in request.GET


def show_by_temp_url(request: Request, response: Response, name: str) -> None:
    """Set the headers of an object for a user of a TempURL (``tempurl`` of Swift).

    They omit non-public metadata, and make a browser save the object.
    """
    headers, query = response.headers, request.GET
    for header in [each for each in headers if _is_private(each)]:
        del headers[header]
    filename = query.get("filename", "")
    kind = "inline" if "inline" in query else "attachment"
    if kind == "inline" and not filename:
        headers["Content-Disposition"] = kind
    elif filename or "Content-Disposition" not in headers:
        filename = filename or name.rstrip("/").rpartition("/")[2]
        # filename* (RFC 6266) is for names beyond ASCII.
        plain = quote(filename, safe=" /")
        headers["Content-Disposition"] = (
            f"{kind}; filename=\"{plain}\"; filename*=UTF-8''{quote(filename)}"
        )
    expires = int(query["temp_url_expires"])
    # The latest time that can be formatted as a date.
    headers["Expires"] = formatdate(min(expires, 253402300799), usegmt=True)


def _is_private(header: str) -> bool:
    name = header.lower()
    return name.startswith(META) and not name.startswith(META + "public-")


# -- listings --------------------


def listing_type(request: Request) -> str:
    """Return the type of a listing, JSON or text; the query overrides ``Accept``.

    :raises exc.HTTPException: 406 for XML and other unsupported types.
    """
    wanted = request.GET.get("format", "").lower()
    if wanted and wanted != "xml":
        return "application/json" if wanted == "json" else "text/plain"
    # format=xml counts as "Accept: application/xml", which no offer below meets.
    accepted = create_accept_header("application/xml") if wanted else request.accept
    offers = accepted.acceptable_offers(["text/plain", "application/json"])
    if not offers:
        raise refused(406)
    return str(offers[0][0])


def listed(entries: Sequence[dict[str, Any]], query: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the requested entries of a listing, each with a ``name`` or a ``subdir``.

    :raises exc.HTTPException: 412 for a limit above the maximum.
    """
    wanted = query.get("limit", "")
    limit = int(wanted) if re.fullmatch("[0-9]{1,18}", wanted) else MAX_LISTED
    if limit > MAX_LISTED:
        raise refused(412, f"Maximum limit is {MAX_LISTED}")
    chosen = _by_delimiter(entries, query.get("prefix", ""), query.get("delimiter", ""))
    low, high = query.get("marker", ""), query.get("end_marker", "")
    # In reverse order the marker is the upper end.
    if query.get("reverse", "").lower() in TRUE:
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
    for each in entries:
        name = each["name"]
        if not name.startswith(prefix):
            continue
        end = name.find(delimiter, len(prefix)) if delimiter else -1
        if end < 0:
            chosen.append(each)
            continue
        subdir = name[: end + len(delimiter)]
        # Entries are sorted: those of one subdir follow each other.
        if not chosen or chosen[-1].get("subdir") != subdir:
            chosen.append({"subdir": subdir})
    return chosen
