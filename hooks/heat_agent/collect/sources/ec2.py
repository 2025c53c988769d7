"""ec2: Nova's EC2-style metadata, from the cache, a config drive or the network.

It belongs to the instance, and is collected once.
"""

from __future__ import annotations

from heat_config.address import redacted

from .. import web
from ..problems import NotConfigured, Unavailable
from . import config_drive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import Surroundings

    Documents = list[tuple[str, Any]]

DEPTH = 8
#: Maximum requests of one collection; Nova needs about thirty.
ENTRIES = 500

LISTING_LIMIT = 1 << 20
GONE = (404, 410)


class Ec2:
    """Read the tree below ``[ec2] metadata_url``."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._options = surroundings.settings.ec2
        self._cache = surroundings.cache
        self._client = surroundings.client
        self._log = surroundings.log
        self._left = 0
        self._document = None

    def collect(self) -> Documents:
        # In this order: memory, the cache of an earlier start, a config drive, the network.
        kept = self._document or self._cache.read("ec2")
        if not kept:
            kept = config_drive.metadata(self._log)
        if not kept:
            if not self._options.metadata_url:
                raise NotConfigured("[ec2] metadata_url is not set")
            self._left = ENTRIES
            kept = self._directory(self._options.metadata_url + "/", DEPTH)
            if not kept:
                raise Unavailable(f'"{redacted(self._options.metadata_url)}" is an empty listing')
        self._document = kept
        return [("ec2", kept)]

    def _directory(self, url: str, depth: int) -> dict[str, Any]:
        """Return {name: text or subdirectory}, without entries that are listed but missing."""
        from urllib.parse import quote

        tree: dict[str, Any] = {}
        for line in self._text(url).split("\n"):
            name = line.strip()
            # Nova ends no listing with a line feed; another server may.
            if not name:
                continue
            # "0=name" stands for the directory of a public key.
            if "=" in name:
                name = name.partition("=")[0] + "/"
            below = url + quote(name, safe="/%:@!$&'()*+,;~")
            try:
                if not name.endswith("/"):
                    tree[name] = self._text(below)
                elif depth > 0:
                    tree[name[:-1]] = self._directory(below, depth - 1)
            except Missing as error:
                self._log.debug(f"{error}; it is skipped")
        return tree

    def _text(self, url: str) -> str:
        self._left -= 1
        if self._left < 0:
            raise Unavailable(
                f'"{redacted(self._options.metadata_url)}" lists more than {ENTRIES} entries'
            )
        answer = self._client.ask(url, seconds=self._options.timeout, limit=LISTING_LIMIT)
        # Without the root there is no metadata at all, and that is an error.
        if answer.status in GONE and url != self._options.metadata_url + "/":
            raise Missing(f'"{redacted(url)}" is listed but missing')
        web.accept(answer)
        return web.text_of(answer)


class Missing(Exception):
    """A listed entry that is missing."""
