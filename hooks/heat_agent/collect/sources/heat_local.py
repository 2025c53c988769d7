"""heat_local: the boot metadata, which cloud-init has written to a file."""

from __future__ import annotations

from .. import documents
from ..problems import NotThere, Unavailable
from . import reading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from . import Surroundings

    Documents = list[tuple[str, Any]]


class HeatLocal:
    """Read the files of ``[heat_local] path``; keys of later files win."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._paths = surroundings.settings.heat_local.path
        self._warn = surroundings.warn

    def collect(self) -> Documents:
        document = {}
        broken = None
        for path in self._paths:
            data = reading.whole(path)
            if data is None:
                continue
            try:
                document.update(documents.decode_object(data, f'"{path}"'))
            except Unavailable as error:
                broken = error
                self._warn(f"{error}; it is skipped")
        if document:
            return [("heat_local", document)]
        # Unavailable keeps the earlier document, NotThere drops it.
        if broken is not None:
            raise broken
        raise NotThere(f"there is no boot metadata ({' '.join(self._paths)})")
