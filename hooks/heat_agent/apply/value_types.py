"""The types of ``os-apply-config --type``: the texts that a value may have, as in 14.1."""

from __future__ import annotations

import re

from .errors import ApplyError

_NAME = "[a-zA-Z0-9_-]+"
_ADDRESS = "^[A-Za-z0-9/.:-]*$"

#: Type: the regular expression that its values match.
PATTERNS = {
    "int": "^[0-9]+$",
    "default": "^[A-Za-z0-9_]*$",
    "netaddress": _ADDRESS,
    "netdevice": _ADDRESS,
    # driver://user:password@host/database?variable=value, all but the driver optional
    "dsn": "^[a-zA-Z0-9]+://([a-zA-Z0-9+_-]+(:[^@]+)?)?(@?[a-zA-Z0-9/_.-]+)?"
    rf"(/{_NAME})?(\?[a-zA-Z0-9=_-]+)?$",
    # ".-_" is a range here, from "." to "_", as it is upstream.
    "swiftdevices": r"^(r\d+z\d+-[A-Za-z0-9.-_]+:%PORT%/[^,]+,?)+$",
    "username": "^[A-Za-z0-9_-]+$",
    "raw": "",
}


def check(text: str, kind: str) -> None:
    """Raise ApplyError when *text* is not of the type *kind*, or there is no such type."""
    if kind not in PATTERNS:
        raise ApplyError(f"requested validation of unknown type: {kind}")
    # As upstream not fullmatch(): "$" also accepts a line feed at the end.
    if not re.match(PATTERNS[kind], text):
        raise ApplyError(f"cannot interpret the value as type {kind}")
