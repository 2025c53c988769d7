"""The commands in hints, which a user pastes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "hotplate"

#: The end of a text before a path that is the argument of a command.
COMMAND = re.compile(
    r"(?:^|[ :])(?:df -h|ls(?: -ld?)?|rm(?: -r)?|chmod (?:\+x|0755)|file|tail|qemu-img .*"
    r"|hotplate (?:test|inspect)) \"?$"
)


def unquoted(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the expression of each path in a hint that no shell would read as one."""
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        for keyword in call.keywords:
            if keyword.arg == "hint" and isinstance(keyword.value, ast.JoinedStr):
                before = ""
                for part in keyword.value.values:
                    if isinstance(part, ast.FormattedValue):
                        word = ast.unparse(part.value)
                        if COMMAND.search(before) and not word.startswith(("shlex.", "quoted(")):
                            yield keyword.value.lineno, word
                        before = ""
                    else:
                        before = str(ast.literal_eval(part))


def test_paths_in_the_commands_of_hints_are_quoted():
    found = [
        f"{file.relative_to(SOURCES)}:{line}: {word}"
        for file in sorted(SOURCES.rglob("*.py"))
        for line, word in unquoted(file.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        ('f"df -h {folder}"', ["folder"]),
        ('f"free some: df -h {folder}"', ["folder"]),
        ("f'rm -r \"{self.path}\"'", ["self.path"]),
        ('f"qemu-img convert -O qcow2 {path} WHOLE.qcow2"', ["path"]),
        ('f"df -h {shlex.quote(str(folder))}"', []),
        ("f'the full log is \"{log}\"'", []),
    ],
)
def test_unquoted_paths_are_found(hint: str, words: list[str]):
    assert [word for _, word in unquoted(f"Error('no', hint={hint})")] == words
