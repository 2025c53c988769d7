"""Names are the field's words: none that could mean anything."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NO_NAMES = {"told", "said", "found", "known"}


def programs() -> list[Path]:
    """The package, the tools and this project's own Python programs among them."""
    files = [*(ROOT / "hotplate").rglob("*.py"), *(ROOT / "tools").iterdir()]
    return sorted(path for path in files if path.is_file() and is_python(path))


def is_python(path: Path) -> bool:
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return path.suffix == ".py" or (first.startswith("#!") and "python" in first)


def names(tree: ast.AST) -> Iterator[str]:
    """All names that a program gives, or uses of another's."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, (ast.arg, ast.keyword)):
            yield node.arg or ""
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name


@pytest.mark.parametrize("path", programs(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_name_could_mean_anything(path):
    assert path.stem not in NO_NAMES
    used = {name.lower() for name in names(ast.parse(path.read_text(encoding="utf-8")))}
    assert not used & NO_NAMES
