"""Microversions of Nova's API: negotiation, and the document that lists them.

The rules are those of ``nova/api/openstack/api_version_request.py`` and of the API guideline on
microversions: without a header it is 2.1, ``latest`` is the newest, and every answer names its
version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hotplate.cloud.database.store import Store
from hotplate.cloud.http.rest import Headers, HttpError, Request, page
from hotplate.cloud.keystone.identity import Grant
from hotplate.cloud.nova.server_records import ServerRecord
from hotplate.cloud.nova.servers import Servers

#: The minor number of the newest version, which is that of Nova 29 (2024.1).
NEWEST = 96

#: Nova: ``[api] max_limit``.
MAX_PAGE = 1000

HEADER = "OpenStack-API-Version"
OLD_HEADER = "X-OpenStack-Nova-API-Version"

Row = TypeVar("Row")


@dataclass(frozen=True)
class Caller:
    """The caller of a request, the version that it asks for, and Nova's records.

    :param minor: the microversion is 2.``minor``.
    :param base: the URL of the API, ``http://127.0.0.1:8774/v2.1``.
    :param request_id: Nova's id of the request.
    :param store: of the groups of servers and the actions on them.
    """

    grant: Grant
    minor: int
    base: str
    request_id: str
    servers: Servers
    store: Store

    def since(self, minor: int) -> bool:
        """Return True when the microversion is 2.``minor`` or newer."""
        return self.minor >= minor

    def server(self, request: Request) -> ServerRecord:
        """Return the server of a request's path.

        :raises NoSuchServerError: when there is none.
        """
        return self.servers.get(request.parts["id"])

    def link(self, path: str, *, bookmark: bool = False) -> list[dict[str, str]]:
        """Return the links of a resource at ``path`` below the base.

        :param bookmark: only the link without a version.
        """
        links = [{"rel": "bookmark", "href": self.base.removesuffix("/v2.1") + path}]
        return links if bookmark else [{"rel": "self", "href": self.base + path}, *links]

    def page(
        self, request: Request, rows: Sequence[Row], name: Callable[[Row], str], links: str
    ) -> tuple[list[Row], dict[str, object]]:
        """Return the requested page of rows, and the link to the next page if there is one.

        :param name: returns a row's id, which is the marker of the next page.
        :param links: the member of the answer that has the link.
        :raises HttpError: 400, for an invalid limit or marker.
        """
        limit = request.number("limit", default=MAX_PAGE, most=MAX_PAGE)
        shown, more = page(rows, name, limit=limit, marker=request.one("marker"))
        if not more or not shown:
            return shown, {}
        following = f"{self.base}{request.path}?limit={limit}&marker={name(shown[-1])}"
        return shown, {links: [{"rel": "next", "href": following}]}


def asked_for(request: Request) -> int:
    """Return the minor number of the version that a request asks for.

    :raises HttpError: 400 when it is not a version, 406 when that version does not exist.
    """
    text = _text(request)
    if text == "latest":
        return NEWEST
    match = re.fullmatch(r"([1-9][0-9]{0,4})\.([1-9][0-9]{0,4}|0)", text)
    if match is None:
        raise HttpError(
            400,
            f"API Version String {text} is of invalid format. Must be of format MajorNum.MinorNum.",
        )
    major, minor = int(match[1]), int(match[2])
    if major != 2 or not 1 <= minor <= NEWEST:
        raise HttpError(
            406,
            f"Version {text} is not supported by the API. Minimum is 2.1 and maximum is "
            f"2.{NEWEST}.",
            # Also the answer that refuses a version names it.
            headers=headers(text),
        )
    return minor


def _text(request: Request) -> str:
    # The header is shared by all services: "compute 2.90, volume 3.50".
    for entry in request.header(HEADER).split(","):
        service, _, version = entry.strip().partition(" ")
        if service.lower() == "compute" and version:
            return version.strip()
    # Nova's own header, which is older than the guideline.
    return request.header(OLD_HEADER).strip() or "2.1"


def headers(version: str) -> Headers:
    """Return the headers that name the version of an answer, such as ``2.96``."""
    return (
        (HEADER, f"compute {version}"),
        (OLD_HEADER, version),
        ("Vary", f"{HEADER}, {OLD_HEADER}"),
    )


def document(base: str) -> dict[str, Any]:
    """Return the description of the only version.

    :param base: the URL of the API.
    """
    return {
        "id": "v2.1",
        "status": "CURRENT",
        "version": f"2.{NEWEST}",
        "min_version": "2.1",
        "updated": "2013-07-23T11:33:21Z",
        "links": [
            {"rel": "self", "href": f"{base}/"},
            {"rel": "describedby", "type": "text/html", "href": "http://docs.openstack.org/"},
        ],
        "media-types": [
            {
                "base": "application/json",
                "type": "application/vnd.openstack.compute+json;version=2.1",
            }
        ],
    }
