"""The metadata: which files have it, how they become one document, and what a key names in it."""

from __future__ import annotations

import json
import os

from .errors import ApplyError

FALLBACK = (
    "/var/cache/heat-cfntools/last_metadata",
    "/var/lib/heat-cfntools/cfn-init-data",
    "/var/lib/cloud/data/cfn-init-data",
)
"""Files whose metadata counts least, where they are there; os-apply-config 14.1 has these."""

FILE_LIMIT = 256 << 20
"""More bytes than this are no metadata."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Optional


def collect(paths: Iterable[str]) -> dict[str, Any]:
    """Return the document that the JSON files *paths* make, later ones over earlier ones.

    Files that are not there, empty names and documents that are no objects are passed over.
    Raises ApplyError for a file that cannot be read or is not JSON.
    """
    return merge(read(path) for path in paths if path and os.path.exists(path))


def read(path: str) -> Any:
    """Return what the JSON file *path* holds; raise ApplyError when it cannot be."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(FILE_LIMIT + 1)
    except OSError as error:
        raise ApplyError(f"Could not open {path} for reading. {error}") from None
    if len(data) > FILE_LIMIT:
        raise ApplyError(f"Metadata file is larger than {FILE_LIMIT} bytes: {path}")
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        # The parser's own words may quote the document.
        raise ApplyError(f"Could not parse metadata file: {path}") from None


def read_list(path: str) -> list[str]:
    """Return the files that an os_config_files.json lists, [] when it is not there.

    Raises ApplyError for anything that is no list of names.
    """
    paths = read(path) if os.path.exists(path) else []
    if not isinstance(paths, list) or not all(
        isinstance(each, (str, type(None))) for each in paths
    ):
        raise ApplyError(f"No list defined in json file: {path}")
    return [each for each in paths if each]


def merge(documents: Iterable[Any]) -> dict[str, Any]:
    """Return one object from many: objects are merged key by key, anything else is replaced.

    What is not an object is passed over. The result shares parts with *documents*, which stay as
    they are. Raises ApplyError when they are nested too deeply.
    """
    merged: dict[str, Any] = {}
    for document in documents:
        if isinstance(document, dict):
            try:
                merged = _over(merged, document)
            except RecursionError:
                raise ApplyError("The metadata is nested too deeply") from None
    return merged


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            value = _over(old, value)
        merged[key] = value
    return merged


def part(document: dict[str, Any], key: Optional[str]) -> dict[str, Any]:
    """Return the object that the dotted *key* names in *document*, all of it without a key.

    Raises ApplyError when there is none.
    """
    for word in key.split(".") if key else ():
        below = document.get(word)
        if not isinstance(below, dict):
            raise ApplyError(f"key '{key}' does not correspond to a hash in the metadata file")
        document = below
    return document


def value_of(document: dict[str, Any], key: str) -> Any:
    """Return what the dotted *key* names; a number names an element of a list. None for nothing."""
    value: Any = document
    for word in key.split("."):
        if isinstance(value, dict):
            value = value.get(word)
        elif isinstance(value, list):
            value = _element(value, word)
        else:
            return None
    return value


def _element(values: list[Any], word: str) -> Any:
    try:
        return values[int(word)]
    except (ValueError, IndexError):
        return None
