"""Values that come in from Heat: read defensively, and put into text the way tools expect."""

import json
import re

PLAIN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,127}\Z")
PLAIN_OUTPUT = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,127}\Z")


def decode(data):
    """Parse the JSON text or bytes *data*; raise ValueError, and nothing else, when it is not JSON.

    NaN and Infinity, which Python reads although JSON does not have them, become strings.
    """
    if isinstance(data, (bytes, bytearray)):
        data = bytes(data).decode("utf-8", "replace")
    try:
        return json.loads(data, parse_constant=str)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def encode(value):
    """Return *value* as JSON text, in ASCII. Raises ValueError when it is nested too deeply."""
    try:
        return json.dumps(value, separators=(",", ":"))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def text(value):
    """Return *value* as tools want it: strings as they are, None empty, the rest as JSON.

    Raises ValueError when it is nested too deeply.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return clean(value)
    try:
        return json.dumps(value)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def clean(string):
    """Return *string* without the lone surrogates that no encoding can carry."""
    if string.isascii():
        return string
    return string.encode("utf-8", "replace").decode("utf-8")


def is_plain_id(value):
    """Return whether an id may become a file name: letters, digits, ``-`` and ``_``."""
    return isinstance(value, str) and PLAIN_ID.match(value) is not None


def is_plain_output(value):
    """Return whether an output name may become the end of a file name."""
    return isinstance(value, str) and PLAIN_OUTPUT.match(value) is not None


def with_texts(inputs):
    """Return *inputs* with text for each value of an input of type String, as hooks are given it.

    The runner of heat-agents makes it with ``str(value)``: ``True``, ``None``, ``['a', 'b']``.
    Scripts compare with that. An input without a value has empty text; there, that is a traceback.
    Raises ValueError when a value is nested too deeply.
    """
    try:
        return [
            {**entry, "value": clean(str(entry.get("value", "")))}
            if isinstance(entry, dict) and entry.get("type") == "String"
            else entry
            for entry in inputs
        ]
    except RecursionError:
        raise ValueError("nested too deeply") from None


def named_values(inputs):
    """Return {name: value} from a list of ``{"name":, "value":}``; what has no name is left out.

    A later one of the same name wins, as in heat-agents. A missing value is None.
    """
    named = {}
    for item in inputs if isinstance(inputs, list) else ():
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            named[item["name"]] = item.get("value")
    return named


def output_names(outputs):
    """Return the declared output names that are plain, in order, each once."""
    names = []
    for item in outputs if isinstance(outputs, list) else ():
        name = item.get("name") if isinstance(item, dict) else None
        if is_plain_output(name) and name not in names:
            names.append(name)
    return names


def encode_unicode(value):
    """Return *value* as JSON text with its characters as they are, lone surrogates included."""
    return json.dumps(value, ensure_ascii=False)
