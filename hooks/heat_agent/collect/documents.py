"""Documents of metadata: JSON in and out, and the documents that deployments add.

The config of a deployment in the group ``os-apply-config`` or ``Heat::Ungrouped`` is metadata: it
becomes a document with the deployment's name, as in os_collect_config.merger.
"""

from __future__ import annotations

import os

from .options import COLLECTORS
from .problems import Unavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

UNGROUPED = "Heat::Ungrouped"
MERGED = ("os-apply-config", UNGROUPED)
LIST_NAME = "os_config_files"
#: Names of the agent's own files, which a deployment cannot have.
RESERVED = (*COLLECTORS, LIST_NAME)

#: Maximum bytes of a document's name, which leaves room for suffixes.
NAME_LIMIT = 200


def decode(text: str | bytes, where: str) -> Any:
    """Parse JSON text or bytes. Raises Unavailable; its message begins with *where*."""
    import json

    try:
        return json.loads(text)
    except RecursionError:
        raise Unavailable(f"{where} is nested too deeply") from None
    except ValueError:
        raise Unavailable(f"{where} is not JSON") from None


def decode_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Parse a JSON object. Raises Unavailable."""
    value = decode(text, where)
    if not isinstance(value, dict):
        raise Unavailable(f"{where} is not a JSON object")
    return value


def encode(value: Any) -> str:
    """Return *value* as JSON for the cache. Raises Unavailable if it is nested too deeply."""
    import json

    try:
        return json.dumps(value, indent=1)
    except RecursionError:
        raise Unavailable("a document is nested too deeply") from None


def canonical(value: Any) -> str:
    """Return text that is equal for equal values, regardless of the order of keys."""
    import json

    return json.dumps(value, sort_keys=True)


def explode(
    name: str, document: Any, keys: list[str], say: Callable[[str], None]
) -> list[tuple[str, Any]]:
    """Return [(*name*, *document*), (deployment's name, its config), ...].

    keys: of lists of deployments in the document. say: called with a sentence for each deployment
    that is skipped.
    """
    # The source's own document comes first, as in upstream's merged_list_from_content().
    pairs = [(name, document)]
    for key in keys:
        if key not in document:
            continue
        listed = document[key]
        if not isinstance(listed, list):
            say(f'"{key}" of the source "{name}" is not a list, and is ignored')
            continue
        for deployment in listed:
            pair = _own(deployment, key, name, say)
            if pair is not None:
                pairs.append(pair)
    return pairs


def _own(
    deployment: Any, key: str, source: str, say: Callable[[str], None]
) -> tuple[str, Any] | None:
    """Return (name, config) if the deployment's config is metadata, else None."""
    if not isinstance(deployment, dict) or "name" not in deployment:
        say(f'an entry of "{key}" of the source "{source}" has no name, and is skipped')
        return None
    if deployment.get("group", UNGROUPED) not in MERGED:
        return None
    name = deployment["name"]
    if not is_file_name(name) or name in RESERVED:
        say(
            f'an entry of "{key}" of the source "{source}" has a name that no file can have,'
            " and is skipped"
        )
        return None
    if "config" not in deployment:
        say(f'an entry of "{key}" of the source "{source}" has no config, and is skipped')
        return None
    return name, deployment["config"]


def is_file_name(name: Any) -> bool:
    """Return whether *name* can be the name of a file in the cache."""
    if not isinstance(name, str) or not name or "/" in name or "\0" in name:
        return False
    try:
        return len(os.fsencode(name)) <= NAME_LIMIT
    # Half of a surrogate pair, which JSON can hold.
    except UnicodeEncodeError:
        return False


def last_of_each(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return *pairs* without those whose name is repeated later."""
    latest = {name: place for place, (name, _) in enumerate(pairs)}
    return [pair for place, pair in enumerate(pairs) if latest[pair[0]] == place]
