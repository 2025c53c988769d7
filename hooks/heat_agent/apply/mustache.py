"""Mustache as in os-apply-config's templates.

The language is that of pystache 0.6 with its lenient settings (a missing value is empty, and an
unclosed section hides the text before it), and values are inserted as os-apply-config does:
strings unchanged, in every form of tag, ``null`` as nothing, all else as JSON.
"""

from __future__ import annotations

import json
import re

DELIMITERS = ("{{", "}}")
BREAKS = ("\r", "\n")
MISSING = object()
LINE_START = re.compile(r"^(.)", re.MULTILINE)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Union

    Section = tuple[str, str, list["Node"]]
    Node = Union[str, tuple[str, str], tuple[str, str, str], Section]


def render(text: str, document: Any, partial: Callable[[str], str]) -> str:
    """Return the template *text* with the values of *document*, a parsed JSON object.

    *partial* returns the text of the template in ``{{> name}}``, "" when there is none.
    Raises ValueError for a template that cannot be parsed, RecursionError for one that includes
    itself without end, and the exceptions of *partial*.

    >>> render("{{#users}}{{name}} {{/users}}", {"users": [{"name": "a"}, {"name": "b"}]}, str)
    'a b '
    """
    return "".join(_render(parse(text), [document], partial))


def parse(text: str) -> list[Node]:
    """Return the parts of a template: text, or (kind, name, content)."""
    tag = _tag_pattern(DELIMITERS)
    nodes: list[Any] = []
    outer: list[tuple[str, str, list[Any]]] = []
    position = 0
    while match := tag.search(text, position):
        kind, name = _read_tag(match)
        start, after = match.span()
        indent = match["blank"]
        # A tag alone on its line takes the whole line with it, unless it prints a value.
        if kind not in ("", "&") and _is_alone(text, start, after):
            after = _behind_line_break(text, after)
        else:
            # Blanks in front of any other tag are text.
            start += len(indent)
            indent = ""
        if position != start:
            nodes.append(text[position:start])
        position = after
        if kind in ("#", "^"):
            outer.append((kind, name, nodes))
            nodes = []
        elif kind == "/":
            if not outer or outer[-1][1] != name:
                raise ValueError("a section is closed that is not open")
            begun, _, around = outer.pop()
            around.append((begun, name, nodes))
            nodes = around
        elif kind == "=":
            tag = _tag_pattern(name.split())
        elif kind == ">":
            nodes.append((kind, name, indent))
        elif kind != "!":
            nodes.append((kind, name))
    if position != len(text):
        nodes.append(text[position:])
    # In a section that is not closed these are its parts: the text before it is lost, as with
    # pystache.
    return nodes


def _tag_pattern(delimiters: Any) -> re.Pattern[str]:
    if len(delimiters) < 2:
        raise ValueError("a tag that sets delimiters must name two")
    begin, end = re.escape(delimiters[0]), re.escape(delimiters[1])
    change = r"=\s*(?P<delimiters>.+?)\s*="
    # "{{{name}}}": the inner braces belong to the tag, whatever the delimiters are.
    bare = r"\{\s*(?P<bare>.+?)\s*\}"
    plain = r"(?P<kind>[!>&/#^]?)\s*(?P<name>[\s\S]+?)"
    return re.compile(rf"(?P<blank>[ \t]*){begin}\s*(?:{change}|{bare}|{plain})\s*{end}")


def _read_tag(match: re.Match[str]) -> tuple[str, str]:
    if match["delimiters"] is not None:
        return "=", match["delimiters"]
    if match["bare"] is not None:
        return "&", match["bare"]
    return match["kind"], match["name"]


def _is_alone(text: str, start: int, after: int) -> bool:
    """Return whether text[start:after] is alone on its line or lines."""
    begins = start == 0 or text[start - 1] in BREAKS
    return begins and (after == len(text) or text[after] in BREAKS)


def _behind_line_break(text: str, position: int) -> int:
    # CR, LF or CR LF is one line break.
    for character in BREAKS:
        if text[position : position + 1] == character:
            position += 1
    return position


def _render(nodes: list[Any], stack: list[Any], partial: Callable[[str], str]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, str):
            yield node
            continue
        kind, name = node[:2]
        if kind == ">":
            # Each line of the partial gets the blanks that were in front of its tag.
            yield from _render(
                parse(LINE_START.sub(node[2] + r"\1", partial(name))), stack, partial
            )
            continue
        value = _look_up(stack, name)
        if kind == "^":
            if value is MISSING or not value:
                yield from _render(node[2], stack, partial)
        elif kind == "#":
            for item in _items(value):
                stack.append(item)
                yield from _render(node[2], stack, partial)
                stack.pop()
        else:
            yield _text(value)


def _look_up(stack: list[Any], name: str) -> Any:
    """Return the value of a dotted name: its first word in the innermost object that has it."""
    if name == ".":
        return stack[-1]
    first, *others = name.split(".")
    value: Any = next((item[first] for item in reversed(stack) if _has(item, first)), MISSING)
    # No outer object is searched from here on: "a.b" is missing if the nearest "a" has no "b".
    for word in others:
        if not _has(value, word):
            return MISSING
        value = value[word]
    return value


def _has(value: Any, key: str) -> bool:
    return isinstance(value, dict) and key in value


def _items(value: Any) -> list[Any]:
    if value is MISSING or not value:
        return []
    return value if isinstance(value, list) else [value]


def _text(value: Any) -> str:
    if value is MISSING or value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)
