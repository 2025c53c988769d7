"""Values from Heat: read defensively, and formatted as tools expect."""

from __future__ import annotations

import json
import math
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# \Z, because "$" also matches before a line end. No dot, no slash: an id is the start of file
# names.
PLAIN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}\Z")
PLAIN_OUTPUT = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,127}\Z")


#: Characters of an integer that are converted, as in Python 3.11; before it takes hours.
MAX_DIGITS = 4300


class NestedTooDeeply(ValueError):
    """A value with more nested lists and maps than Python's JSON accepts."""


def decode(data: str | bytes | bytearray) -> Any:
    """Parse the JSON text or bytes *data*; raise ValueError, and nothing else, when it is not JSON.

    Numbers that cannot be written as JSON become strings: NaN, Infinity, one that is too large for
    a float ("inf", as 1e999), and an integer of more than MAX_DIGITS.
    """
    if isinstance(data, (bytes, bytearray)):
        data = bytes(data).decode("utf-8", "replace")
    try:
        # parse_constant gets NaN and Infinity, which Python's parser accepts beyond JSON.
        return json.loads(data, parse_int=_integer, parse_float=_real, parse_constant=_real)
    except RecursionError:
        raise NestedTooDeeply from None


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= MAX_DIGITS else digits


def _real(digits: str) -> float | str:
    number = float(digits)
    return number if math.isfinite(number) else str(number)


def encode(value: object, *, ascii_only: bool = True) -> str:
    """Return *value* as JSON text, by default in ASCII. Raises NestedTooDeeply."""
    try:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_only)
    except RecursionError:
        raise NestedTooDeeply from None


def text(value: object) -> str:
    """Return *value* as tools want it: strings as they are, None empty, the rest as JSON.

    Raises NestedTooDeeply.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return clean(value)
    try:
        return json.dumps(value)
    except RecursionError:
        raise NestedTooDeeply from None


def clean(string: str) -> str:
    """Return *string* without the lone surrogates that no encoding can carry."""
    if string.isascii():
        return string
    # JSON's "\ud800" is a str that cannot be encoded; "replace" makes it a question mark.
    return string.encode("utf-8", "replace").decode("utf-8")


def is_plain_id(value: object) -> bool:
    """Return whether an id may become a file name: letters, digits, ``-`` and ``_``."""
    return isinstance(value, str) and PLAIN_ID.match(value) is not None


def is_plain_output(value: object) -> bool:
    """Return whether an output name may become the end of a file name."""
    return isinstance(value, str) and PLAIN_OUTPUT.match(value) is not None


def with_texts(inputs: list[Any]) -> list[Any]:
    """Return *inputs* with text for each value of an input of type String, as hooks get it.

    The runner of heat-agents makes it with ``str(value)``: ``True``, ``None``, ``['a', 'b']``.
    Scripts compare with that. An input without a value has empty text; there, that is a traceback.
    Raises NestedTooDeeply.
    """
    try:
        return [
            {**entry, "value": clean(str(entry.get("value", "")))}
            if isinstance(entry, dict) and entry.get("type") == "String"
            else entry
            for entry in inputs
        ]
    except RecursionError:
        raise NestedTooDeeply from None


def named_values(inputs: object) -> dict[str, Any]:
    """Return {name: value} from a list of ``{"name":, "value":}``; skip entries without a name.

    A later one of the same name wins, as in heat-agents. A missing value is None.
    """
    named = {}
    for item in inputs if isinstance(inputs, list) else ():
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            named[item["name"]] = item.get("value")
    return named


def output_names(outputs: object) -> list[str]:
    """Return the declared output names that are plain, in order, each once."""
    items = (
        [item for item in outputs if isinstance(item, dict)] if isinstance(outputs, list) else []
    )
    return list(dict.fromkeys(i["name"] for i in items if is_plain_output(i.get("name"))))
