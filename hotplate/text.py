"""Clean text that a guest, a template or an image may have written.

All text for people (a terminal, pytest's output, a report, an error's sentence) passes
:func:`clean`, which keeps only the words: no escape sequence that moves the cursor, sets a title
or fills the clipboard (ECMA-48, xterm's ctlseqs), and no invisible character that makes a line
read differently (Unicode Technical Report 36, 3.5; CVE-2021-42574).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

# CSI and OSC sequences, and the two-character escapes of ECMA-48. The rest of others, or of
# unterminated ones, is harmless text without its control characters.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[=>@-Z\\-~]")
# Controls of both sets except tab and line feed.
_CONTROLS = "\x00-\x08\x0b-\x1f\x7f-\x9f"
# Unicode's format characters (category Cf: bidirectional controls, zero widths, tags), which are
# invisible, and its separators of lines and paragraphs.
_FORMATS = (
    "\u00ad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f"
)
_INVISIBLE = re.compile(f"[{_CONTROLS}{_FORMATS}]")
_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    r"""Return text without terminal escapes, controls and invisible characters.

    Tabs and line feeds stay; half of a surrogate pair, which no stream can write, becomes U+FFFD.

    >>> clean("\x1b[32mPASSED\x1b[0m \u202eDEL")
    'PASSED DEL'
    """
    if text.isprintable():
        return text
    return _SURROGATES.sub("\ufffd", _INVISIBLE.sub("", _ESCAPES.sub("", text)))


def clean_all(value: Any) -> Any:
    """Return a JSON value with all text in it cleaned."""
    return map_json(value, lambda each: clean(each) if isinstance(each, str) else each)


def map_json(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a JSON value with ``change`` applied to its keys and to what has no items."""
    if isinstance(value, dict):
        return {change(key): map_json(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [map_json(each, change) for each in value]
    return change(value)


def clean_line(text: str) -> str:
    """Return text as one clean line, which cannot look like two."""
    return " ".join(clean(text).split("\n"))


def quoted(path: Path | str) -> str:
    """Return a path as an argument in a command to paste, where a dash begins no option.

    >>> print(quoted("-my web.qcow2"))
    './-my web.qcow2'
    """
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def file_name(text: str, *, longest: int = 100, otherwise: str = "unnamed") -> str:
    """Return a file name made of the words of a template's author, or of a path.

    It has no slash, and no dot at the start.

    >>> file_name("../my web server")
    'my-web-server'

    :param longest: characters that are kept; a name has less than 256 bytes.
    :param otherwise: the name when nothing of the text is left.
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:longest] or otherwise


def shortened(text: str, limit: int) -> str:
    """Return text of at most about ``limit`` characters; a shortened one states the full length."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}... ({len(text)} characters)"
