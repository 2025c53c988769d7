"""The metadata: its files, how they become one document, and the values of keys in it."""

from __future__ import annotations

import json
import os

from .errors import ApplyError

#: Files whose metadata has the lowest priority, if they exist; os-apply-config 14.1 has these.
FALLBACK = (
    "/var/cache/heat-cfntools/last_metadata",
    "/var/lib/heat-cfntools/cfn-init-data",
    "/var/lib/cloud/data/cfn-init-data",
)

#: Maximum bytes of a metadata file.
FILE_LIMIT = 256 << 20

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def collect(paths: Iterable[str]) -> dict[str, Any]:
    """Return the document of the JSON files *paths*, later ones over earlier ones.

    Missing files, empty names and documents other than objects are skipped.
    Raises ApplyError for a file that cannot be read or is not JSON.
    """
    return merge(read(path) for path in paths if path and os.path.exists(path))


def read(path: str) -> Any:
    """Return the value in the JSON file *path*; raise ApplyError when it cannot be read."""
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
        # The parser's own message may quote the document.
        raise ApplyError(f"Could not parse metadata file: {path}") from None


def read_list(path: str) -> list[str]:
    """Return the files that an os_config_files.json lists, [] when it does not exist.

    Raises ApplyError for anything but a list of names.
    """
    paths = read(path) if os.path.exists(path) else []
    if not isinstance(paths, list) or not all(
        isinstance(each, (str, type(None))) for each in paths
    ):
        raise ApplyError(f"No list defined in json file: {path}")
    # Null and "" may be in the list: upstream's read_configs() skips them.
    return [each for each in paths if each]


def merge(documents: Iterable[Any]) -> dict[str, Any]:
    """Return one object from many: objects are merged key by key, anything else is replaced.

    Values other than objects are skipped. The result shares parts with *documents*, which are not
    changed. Raises ApplyError when they are nested too deeply.
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


def part(document: dict[str, Any], key: str | None) -> dict[str, Any]:
    """Return the object at the dotted *key* in *document*, all of it without a key.

    Raises ApplyError when there is none.
    """
    for word in key.split(".") if key else ():
        below = document.get(word)
        if not isinstance(below, dict):
            raise ApplyError(f"key '{key}' does not correspond to a hash in the metadata file")
        document = below
    return document


def value_of(document: dict[str, Any], key: str) -> Any:
    """Return the value at the dotted *key*, None if missing; a number is an index of a list."""
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
        # Python's indexes, as upstream: -1 is the last element.
        return values[int(word)]
    except (ValueError, IndexError):
        return None
