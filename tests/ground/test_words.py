"""Words are spelled one way, and a class is the only one of its name."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The option, the setting and the folder are ``artifacts``.
OTHER_SPELLING = "arte" + "fact"


def programs(folder: str) -> list[Path]:
    """Return the Python files of a folder, including programs without a suffix."""
    return sorted(path for path in (ROOT / folder).rglob("*") if path.is_file() and is_python(path))


def is_python(path: Path) -> bool:
    if path.suffix == ".py":
        return True
    first = path.read_bytes().partition(b"\n")[0]
    return not path.suffix and first.startswith(b"#!") and b"python" in first


@pytest.mark.parametrize("folder", ["hotplate", "tools", "tests", "docs", "elements", "hooks"])
def test_artifacts_are_spelled_one_way(folder):
    made = {"_build", "__pycache__"}
    files = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    texts = {path: path.read_bytes().lower() for path in files if made.isdisjoint(path.parts)}
    assert [path for path, text in texts.items() if OTHER_SPELLING.encode() in text] == []


#: The request of an HTTP client, and that of a user of the verb test.
IN_TWO_ROOMS = {"Request"}


def test_class_names_are_unique():
    places: dict[str, list[str]] = {}
    for path in programs("hotplate"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name for name, paths in places.items() if len(paths) > 1} == IN_TWO_ROOMS
