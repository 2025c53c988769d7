"""local: JSON files that the operator put into a directory, each a document."""

from __future__ import annotations

import os
import stat

from .. import documents
from ..problems import NotThere, Unavailable
from . import reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from . import Surroundings

    Documents = list[tuple[str, Any]]


class Local:
    """Read all files in the directories of ``[local] path``, sorted by name.

    A directory must belong to the agent's user, and must not be world-writable, nor its files.
    """

    def __init__(self, surroundings: Surroundings) -> None:
        self._paths = surroundings.settings.local.path
        self._log = surroundings.log
        self._warn = surroundings.warn

    def collect(self) -> Documents:
        pairs = []
        for path in self._paths:
            try:
                status = os.stat(path)
                names = os.listdir(path)
            except OSError:
                self._log.debug(f'"{path}" does not exist')
                continue
            _check_directory(path, status)
            pairs += [pair for name in names for pair in self._read(path, name)]
        return sorted(pairs, key=lambda pair: pair[0])

    def _read(self, directory: str, name: str) -> Iterator[tuple[str, Any]]:
        path = os.path.join(directory, name)
        if name.startswith(".") or os.path.isdir(path):
            return
        try:
            status = os.stat(path)
        except OSError:
            return  # a dangling link, or just removed
        # One such file discards the whole source, as upstream.
        if status.st_mode & stat.S_IWOTH:
            raise NotThere(f'"{path}" is world-writable: local metadata is not used')
        if not documents.is_file_name(name) or name in documents.RESERVED:
            self._warn(f'"{path}" has a name that is reserved for the agent; it is skipped')
            return
        data = reading.whole(path)
        if data is None:
            raise Unavailable(f'"{path}" cannot be read')
        yield name, documents.decode(data, f'"{path}"')


def _check_directory(path: str, status: os.stat_result) -> None:
    if status.st_uid != os.getuid():
        raise NotThere(f'"{path}" belongs to another user: local metadata is not used')
    # Writable for the group is allowed, as upstream: the owner lets others write.
    if status.st_mode & stat.S_IWOTH:
        raise NotThere(f'"{path}" is world-writable: local metadata is not used')
