"""The rooms of hotplate/ and what they may import, as docs/design.rst has it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "hotplate"
GROUND = {"", "errors", "paths", "settings", "locks", "host_tools", "shard", "text"}
"""The package itself and the modules that are loose in it, which everybody may import."""
FLOORS = 7


def documented() -> dict[str, set[str] | None]:
    """Each room of the table, with the rooms that it may import; None for any."""
    table: dict[str, str] = {}
    inside = False
    room = ""
    for line in (ROOT / "docs" / "design.rst").read_text().splitlines():
        if line.startswith("Room  "):
            inside = True
        elif inside and not line.strip():
            break
        elif inside and not line.startswith("==="):
            start = re.match(r"``([a-z.]+)``", line)
            room = start[1] if start else room
            table[room] = f"{table.get(room, '')} {line[74:].strip()}"
    allowed = {}
    for room, text in table.items():
        names = {name.strip() for name in text.split(",") if name.strip()} - {"none"}
        allowed[room] = None if names == {"any"} else names
    return allowed


def room_of(module: str) -> str:
    """The room of a dotted module, "" for the ground floor."""
    parts = module.split(".")[1:]
    while parts and not PACKAGE.joinpath(*parts).is_dir():
        parts.pop()
    return ".".join(parts)


def imports(path: Path) -> Iterator[str]:
    """The modules of hotplate that a file imports, at its top or inside a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("hotplate"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hotplate"):
            assert node.module is not None
            yield from (f"{node.module}.{each.name}" for each in node.names)


def arrows() -> Iterator[tuple[str, str, str]]:
    """(room, room that it imports, the file) for all of hotplate/."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in imports(path):
            if room_of(module) != room_of(name):
                yield room_of(module), room_of(name), str(path.relative_to(ROOT))


ROOMS = documented()


def test_every_room_is_in_the_table():
    folders = {
        ".".join(path.parent.relative_to(PACKAGE).parts) for path in PACKAGE.rglob("__init__.py")
    }
    assert folders - {""} == set(ROOMS)


def test_no_module_is_loose_but_the_ground_floor():
    assert {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"} <= GROUND


def test_imports_are_those_of_the_table():
    wrong = [
        f"{path}: {room} imports {other}"
        for room, other, path in arrows()
        if room and other and ROOMS[room] is not None and other not in (ROOMS[room] or ())
    ]
    assert not wrong, "\n".join(wrong)


def test_the_ground_floor_imports_no_room():
    assert not [
        (path, other) for room, other, path in arrows() if not room and path[-11:] != "__main__.py"
    ]


def test_floors():
    """No circle, and few enough floors that one person can keep them in mind."""
    below: dict[str, set[str]] = {room: set() for room in ROOMS}
    for room, other, _ in arrows():
        if room and other:
            below[room].add(other)
    height: dict[str, int] = {}

    def floor(room: str, above: tuple[str, ...] = ()) -> int:
        assert room not in above, f"a circle: {' -> '.join((*above, room))}"
        if room not in height:
            height[room] = 1 + max((floor(each, (*above, room)) for each in below[room]), default=0)
        return height[room]

    tops = {room: floor(room) for room in ROOMS}
    # The services inside the cloud are one floor for who stands outside of it.
    outside = {room: tops[room] for room in ROOMS if not room.startswith("cloud.")}
    assert len(set(outside.values())) <= FLOORS, outside


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_says_what_it_is(room):
    text = ast.get_docstring(
        ast.parse((PACKAGE / room.replace(".", "/") / "__init__.py").read_text())
    )
    assert text
    assert 2 <= len(text.splitlines()) <= 8, text
