"""No module imports, over others or not, a module that imports it; imports for types count too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def modules(base: Path, package: str) -> dict[str, Path]:
    """Each module of a package below *base*, by its dotted name."""
    everything = {}
    for path in (base / package).rglob("*.py"):
        parts = path.relative_to(base).with_suffix("").parts
        everything[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return everything


def imported(name: str, path: Path) -> Iterator[str]:
    """The dotted names that a module imports, at its top or inside a function."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            place = ".".join(parents[: len(parents) + 1 - node.level]) if node.level else ""
            base = ".".join(part for part in (place, node.module) if part)
            yield base
            yield from (f"{base}.{each.name}" for each in node.names)


@pytest.mark.parametrize(
    ("base", "packages"),
    [("", ("hotplate",)), ("hooks", ("heat_config", "heat_agent", "heat_cfn", "heat_containers"))],
    ids=["hotplate", "hooks"],
)
def test_no_import_comes_back(base, packages):
    everything = {}
    for package in packages:
        everything |= modules(ROOT / base, package)
    graph = {}
    for name, path in everything.items():
        targets = set(imported(name, path)) & everything.keys()
        # A package's own name is that of its __init__, which every module of it needs.
        graph[name] = {each for each in targets if each != name and not name.startswith(each + ".")}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))
