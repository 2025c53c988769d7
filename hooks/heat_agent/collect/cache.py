"""The cache: ``key.json`` is the current document, ``.orig`` the first, ``.last`` the last used.

The format is that of os_collect_config.cache, so that either agent can continue with the other's
files: JSON with an indent of one, mode 0600. ``.last`` is the document for which the command last
succeeded; a document that differs from it is a change.
"""

from __future__ import annotations

import os

from heat_config import files

from . import tree
from .documents import LIST_NAME, canonical

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIMIT = 64 << 20


class Cache:
    """The files in *directory*."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def path(self, key: str) -> str:
        """Return the path of a document."""
        return os.path.join(self.directory, f"{key}.json")

    def read(self, key: str) -> Any:
        """Return a document, or None if there is none or it cannot be read."""
        return _parsed(_bytes(self.path(key)))

    def store(self, key: str, text: str) -> bool:
        """Write the JSON *text* as the document *key*; return whether it is a change.

        An unchanged file is not written. Raises OSError.
        """
        files.make_directory(self.directory)
        path = self.path(key)
        # json.dumps() has escaped all other characters.
        data = text.encode("ascii")
        first = not os.path.exists(path + ".orig")
        if first:
            files.write_whole(path + ".orig", data)
        if _bytes(path) != data:
            files.write_whole(path, data)
        # As in upstream's store(): a document without .orig or .last is a change, too.
        return first or not self._is_last(path, data)

    def commit(self, key: str) -> None:
        """Record that the command succeeded for the document *key*. Raises OSError."""
        data = _bytes(self.path(key))
        if data is not None and _bytes(self.path(key) + ".last") != data:
            files.write_whole(self.path(key) + ".last", data)

    def write_list(self, keys: list[str]) -> None:
        """Write the list of current documents, in order. Raises OSError."""
        import json

        data = json.dumps([self.path(key) for key in keys]).encode("ascii")
        if _bytes(self.path(LIST_NAME)) != data:
            files.write_whole(self.path(LIST_NAME), data)

    def back_up(self, directory: str) -> None:
        """Make *directory* a copy of the cache. Raises OSError."""
        if not directory:
            return
        own = os.path.realpath(self.directory)
        other = os.path.realpath(directory)
        # Below, the other directory is removed first.
        if own == other or other.startswith(own + os.sep) or own.startswith(other + os.sep):
            raise OSError(0, "one of the two directories is inside the other")
        tree.remove(directory)
        if os.path.isdir(self.directory):
            tree.copy(self.directory, directory)

    def _is_last(self, path: str, data: bytes) -> bool:
        last = _bytes(path + ".last")
        if last is None or last == data:
            return last is not None
        before, now = _parsed(last), _parsed(data)
        try:
            # Not ==: in Python True equals 1.
            return canonical(before) == canonical(now)
        except (RecursionError, TypeError):
            return False


def _bytes(path: str) -> bytes | None:
    try:
        with open(path, "rb") as stream:
            return stream.read(LIMIT)
    except OSError:
        return None


def _parsed(data: bytes | None) -> Any:
    import json

    if data is None:
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
