"""Parse oslo.config's files: sections, ``key = value`` or ``key: value``, continuation lines.

A key may be repeated. A line that starts with whitespace continues the value above it; ``#`` and
``;`` start a comment in the first column only; one pair of quotes around a value is removed. The
behaviour is that of oslo_config.iniparser.
"""

from __future__ import annotations


class IniError(ValueError):
    """A line that cannot be parsed; the message has its number but not its text."""


def parse(text: str) -> list[tuple[str, str, str]]:
    """Return (section, key, value) in the order of the file. Raises IniError."""
    entries: list[tuple[str, str, str]] = []
    section = ""
    key = None
    value: list[str] = []
    # Not splitlines(), which knows more line ends than a text file does.
    for number, line in enumerate([*text.replace("\r\n", "\n").split("\n"), ""], 1):
        line = line.rstrip()
        if line[:1] in (" ", "\t"):
            if key is None:
                raise IniError(f"line {number} is indented but continues no value")
            value.append(line.lstrip())
            continue
        if key is not None:
            entries.append((section, key, "\n".join(value)))
            key = None
        if line.startswith("["):
            section = _section(line, number)
        elif line and line[0] not in "#;":
            key, first = _assignment(line, number)
            value = [first]
            if not section:
                raise IniError(f"line {number} comes before any [section]")
    return entries


def _section(line: str, number: int) -> str:
    if not line.endswith("]"):
        raise IniError(f'line {number} does not end with "]"')
    if len(line) == 2:
        raise IniError(f"line {number} has an empty section name")
    return line[1:-1]


def _assignment(line: str, number: int) -> tuple[str, str]:
    places = [place for place in (line.find("="), line.find(":")) if place >= 0]
    if not places:
        raise IniError(f'line {number} has neither "=" nor ":"')
    # The first of the two signs ends the key; a value may hold the other one.
    key = line[: min(places)].strip()
    value = line[min(places) + 1 :].strip()
    if not key:
        raise IniError(f"line {number} has no key")
    # As upstream, a value of one quote alone becomes empty.
    if value and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return key, value
