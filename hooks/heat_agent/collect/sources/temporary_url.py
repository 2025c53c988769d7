"""request: a document at a URL, such as the temporary URL of a Swift object."""

from __future__ import annotations

from heat_config.address import redacted

from .. import documents, web
from ..problems import NotConfigured, Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import Surroundings

    Documents = list[tuple[str, Any]]

NOT_MODIFIED = 304


class TemporaryUrl:
    """Get ``[request] metadata_url``, after the first time only if modified (RFC 9110 13.1)."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._options = surroundings.settings.request
        self._keys = surroundings.settings.deployment_key
        self._client = surroundings.client
        self._warn = surroundings.warn
        self._conditions: dict[str, str] = {}
        self._document: dict[str, Any] | None = None

    def collect(self) -> Documents:
        url = self._options.metadata_url
        if not url:
            raise NotConfigured("[request] metadata_url is not set")
        answer = self._client.ask(url, headers=self._conditions, seconds=self._options.timeout)
        if answer.status != NOT_MODIFIED:
            web.accept(answer)
            where = f'the answer of "{redacted(url)}"'
            # A 3xx that is no redirect, such as 300.
            if answer.status >= 300:
                raise Unavailable(f"{where} is not a document")
            self._document = documents.decode_object(web.text_of(answer), where)
            self._conditions = _conditions(answer.headers)
        elif self._document is None:
            raise Unavailable(f'"{redacted(url)}" answered 304 to an unconditional request')
        return documents.explode("request", self._document, self._keys, self._warn)


def _conditions(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers that request the document only if it has changed."""
    # One is enough: a server ignores If-Modified-Since beside If-None-Match (RFC 9110 13.1.3).
    if headers.get("etag"):
        return {"If-None-Match": headers["etag"]}
    if headers.get("last-modified"):
        return {"If-Modified-Since": headers["last-modified"]}
    return {}
