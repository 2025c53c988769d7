"""Read the parts, collectors and wait condition handles of a server's user data.

The format is Heat's (heat/engine/clients/os/nova.py): MIME multipart with the part
``cfn-init-data``, whose JSON has the section ``os-collect-config``.
"""

from __future__ import annotations

import contextlib
import email
import json
import re
from typing import Any
from urllib.parse import unquote

from hotplate.events.kinds import UserDataParts

CFN_INIT_DATA = "cfn-init-data"
SOURCES = ("cfn", "heat", "request", "zaqar")
"""The collectors of os-collect-config that Heat can point at itself."""

_HANDLE = re.compile(r"stacks/[^/\s\"']+/(?P<stack>[0-9a-f-]{36})/resources/(?P<name>[\w.-]+)")


def describe(data: bytes) -> UserDataParts:
    """Return a description of a server's user data: ``parts``, ``sources`` and ``handles``.

    :param data: MIME multipart, as Heat makes it; anything else has no parts.
    """
    message = email.message_from_bytes(data)
    parts = list(message.walk())[1:] if message.is_multipart() else []
    texts = [_text(part) for part in parts if not part.is_multipart()] or [
        data.decode(errors="replace")
    ]
    init_data = [_text(part) for part in parts if part.get_filename() == CFN_INIT_DATA]
    return UserDataParts(
        parts=[part.get_filename() or part.get_content_type() for part in parts],
        sources=_sources(init_data[0]) if init_data else [],
        handles=sorted({handle for text in texts for handle in _handles(text)}),
    )


def _text(part: Any) -> str:
    payload = part.get_payload(decode=True)
    return payload.decode(errors="replace") if isinstance(payload, bytes) else ""


def _sources(init_data: str) -> list[str]:
    """Return the collectors for which the data has a setting that is not empty."""
    with contextlib.suppress(ValueError, AttributeError):
        sections = json.loads(init_data).get("os-collect-config") or {}
        return [name for name in SOURCES if any((sections.get(name) or {}).values())]
    return []


def _handles(text: str) -> list[str]:
    """Return the wait condition handles whose URLs are in a text, as ``STACK-ID/NAME``."""
    return [f"{handle['stack']}/{handle['name']}" for handle in _HANDLE.finditer(unquote(text))]
