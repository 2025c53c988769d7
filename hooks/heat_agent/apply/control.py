"""Control files: ``NAME.oac`` beside the template NAME, a small YAML map.

``mode`` (0600), ``owner`` and ``group`` (a name or a number), ``allow_empty`` (false: a file that
would be empty is removed). The parser reads the YAML 1.1 that such a map needs: plain and quoted
words, its numbers and booleans, comments, one map over lines or in braces.
"""

from __future__ import annotations

import grp
import pwd
import re

from .errors import ApplyError

KEYS = ("allow_empty", "mode", "owner", "group")
HIGHEST_MODE = 0o777

# As in YAML 1.1 and PyYAML's resolver: other spellings, and "y" and "n", are text.
_TRUE = re.compile("yes|Yes|YES|true|True|TRUE|on|On|ON")
_FALSE = re.compile("no|No|NO|false|False|FALSE|off|Off|OFF")
_NULL = re.compile("~|null|Null|NULL")
# Digits behind a 0 are octal: "0600" is a mode, while "0o600" is text, as with PyYAML.
_INTEGERS = (
    (re.compile("[-+]?0b[01_]+"), 2),
    (re.compile("[-+]?0x[0-9a-fA-F_]+"), 16),
    (re.compile("[-+]?0[0-7_]+"), 8),
    (re.compile("[-+]?(?:0|[1-9][0-9_]*)"), 10),
)
# YAML 1.1 reads digits with colons in base 60: 1:30 is 90.
_SIXTIES = re.compile("[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+")

_QUOTED = r"""'(?:[^'\n]|'')*'|"(?:[^"\\\n]|\\["\\/])*\""""
# An indicator begins no plain word; "-", "?" and ":" do where a character follows at once.
_FIRST = r"""(?![-?:](?:\s|$))[^\s,\[\]{}#&*!|>'"%@`]"""
# A colon with a blank behind it ends a word. In braces, a comma or a bracket does so, too.
_REST = r"(?:[^\s:]|:(?=\S))"
_FLOW_REST = r"(?:[^\s:,\[\]{}]|:(?=[^\s,\[\]{}]))"
_PLAIN = rf"{_FIRST}{_REST}*(?: +(?!#){_REST}+)*"
_FLOW_PLAIN = rf"{_FIRST}{_FLOW_REST}*(?: +(?!#){_FLOW_REST}+)*"
_NOTHING = re.compile(r" *(?:#.*)?")
# The mark in front of a document: alone, with a comment, or with a map in braces behind it.
_BEGIN = re.compile(r"---(?: *$| +#| +\{)")
# PyYAML takes a comment right behind a quote as well.
_END = r"""(?: +#.*| *|(?<=['"])#.*)"""
_ENTRY = re.compile(rf"(?P<key>{_QUOTED}|{_PLAIN}) *:(?: +(?P<value>{_QUOTED}|{_PLAIN}))?{_END}")
_VALUE = re.compile(rf"(?P<value>{_QUOTED}|{_PLAIN}){_END}")
_SPACE = r"(?:[ \n]|(?<=[ \n])#[^\n]*(?=\n|\Z))*"
_FLOW_ENTRY = re.compile(
    rf"{_SPACE}(?:(?P<quoted>{_QUOTED}) *:|(?P<plain>{_FLOW_PLAIN}) *:(?=[\s,}}]))"
    rf"{_SPACE}(?P<value>{_QUOTED}|{_FLOW_PLAIN})?{_SPACE}(?P<end>,{_SPACE}}}|[,}}])"
)
_FLOW_EMPTY = re.compile(rf"\{{{_SPACE}\}}")
_FLOW_REST_OF_TEXT = re.compile(_SPACE)
# PyYAML refuses most of these, and reads U+0085, U+2028 and U+2029 as line breaks.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff]")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Union

    Value = Union[None, bool, int, str]


class Control:
    """The settings for writing a file; None where the control file sets nothing.

    mode: permissions as a number; owner, group: numbers from the system's databases.
    """

    def __init__(self, settings: dict[str, Value]) -> None:
        """Read the values of a control file; raises ApplyError for invalid ones."""
        unknown = [key for key in settings if key not in KEYS]
        if unknown:
            raise ApplyError(f"unrecognised file control key '{unknown[0]}'")
        self.allow_empty = _boolean(settings.get("allow_empty", True))
        self.mode = _mode(settings["mode"]) if "mode" in settings else None
        self.owner = _entry("owner", settings, "passwd", pwd.getpwuid, pwd.getpwnam)
        self.group = _entry("group", settings, "group", grp.getgrgid, grp.getgrnam)


def _boolean(value: Value) -> bool:
    if not isinstance(value, bool):
        raise ApplyError(f"allow_empty requires Boolean, got: '{value}'")
    return value


def _mode(value: Value) -> int:
    # Not isinstance(), which is true for True; upstream refuses that too.
    if type(value) is not int:
        raise ApplyError(f"mode '{value}' is not numeric")
    if not 0 <= value <= HIGHEST_MODE:
        raise ApplyError(f"mode '{value:#o}' out of range")
    return value


def _entry(
    key: str,
    settings: Mapping[str, Value],
    database: str,
    by_number: Callable[[int], tuple[Any, ...]],
    by_name: Callable[[str], tuple[Any, ...]],
) -> int | None:
    """Return the number of the user or group that *key* names, None without such a key."""
    if key not in settings:
        return None
    value = settings[key]
    try:
        if type(value) is int:
            return int(by_number(value)[2])
        if isinstance(value, str):
            return int(by_name(value)[2])
    except (KeyError, ValueError):
        raise ApplyError(f"{key} '{value}' not found in {database} database") from None
    raise ApplyError(f"{key} '{value}' must be a string or int")


def parse(text: str) -> dict[str, Value]:
    """Return the map in a control file's *text*, {} when it is empty.

    Raises ApplyError for YAML beyond the module's description.
    """
    lines = _lines(text)
    if lines and lines[0].startswith("{"):
        return _flow_map("\n".join(lines))
    settings: dict[str, Value] = {}
    open_key: str | None = None
    # The first line sets the depth of all keys.
    depth = len(lines[0]) - len(lines[0].lstrip(" ")) if lines else 0
    for line in lines:
        indent = len(line) - len(line.lstrip(" "))
        # A deeper line is the value of the key above it, which had none on its own line.
        if indent > depth and open_key is not None:
            match = _VALUE.fullmatch(line, indent)
            key, open_key = open_key, None
        else:
            match = _ENTRY.fullmatch(line, indent) if indent == depth else None
            key = _text(match["key"]) if match else ""
            open_key = key if match and match["value"] is None else None
        if not match:
            raise _not_a_map()
        settings[key] = _resolve(match["value"])
    return settings


def _lines(text: str) -> list[str]:
    """Return the lines with content, without the marks around a document."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if _UNPRINTABLE.search(text):
        raise _not_a_map()
    lines = [line for line in text.split("\n") if not _NOTHING.fullmatch(line)]
    # "..." marks the end of a document.
    if len(lines) > 1 and lines[-1].rstrip(" ") == "...":
        del lines[-1]
    if lines and _BEGIN.match(lines[0]):
        behind = lines[0][3:].lstrip(" ")
        lines[:1] = [behind] if behind.startswith("{") else []
    return lines


def _flow_map(text: str) -> dict[str, Value]:
    settings: dict[str, Value] = {}
    empty = _FLOW_EMPTY.match(text)
    position, end = (empty.end(), "}") if empty else (1, "")
    while end[-1:] != "}":
        match = _FLOW_ENTRY.match(text, position)
        if not match:
            raise _not_a_map()
        settings[_text(match["quoted"] or match["plain"])] = _resolve(match["value"])
        end, position = match["end"], match.end()
    if not _FLOW_REST_OF_TEXT.fullmatch(text, position):
        raise _not_a_map()
    return settings


def _not_a_map() -> ApplyError:
    return ApplyError('a control file must be a map, a line "key: value" for each key')


def _text(token: str) -> str:
    if token[0] == "'":
        return token[1:-1].replace("''", "'")
    if token[0] == '"':
        return re.sub(r"\\(.)", r"\1", token[1:-1])
    return token


def _resolve(token: str | None) -> Value:
    """Return the value of a word in YAML 1.1; numbers that only YAML 1.1 knows are text."""
    if token is None or _NULL.fullmatch(token):
        return None
    if token[0] in "'\"":
        return _text(token)
    if _TRUE.fullmatch(token) or _FALSE.fullmatch(token):
        return _TRUE.fullmatch(token) is not None
    digits = token.replace("_", "")
    for pattern, base in _INTEGERS:
        if pattern.fullmatch(token):
            try:
                return int(digits, base)
            except ValueError:
                raise _not_a_map() from None
    if _SIXTIES.fullmatch(token):
        total = 0
        for part in digits.lstrip("+-").split(":"):
            total = total * 60 + int(part)
        return -total if token[0] == "-" else total
    return token
