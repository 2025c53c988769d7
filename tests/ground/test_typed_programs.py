"""The type checker covers every program of this repository, not only the package."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def is_python(path: Path) -> bool:
    if path.suffix:
        return path.suffix == ".py"
    return b"python3" in path.read_bytes().split(b"\n", 1)[0]


def test_each_program_is_type_checked() -> None:
    files = [*(ROOT / "tools").iterdir(), *(ROOT / "hooks").iterdir()]
    tools = [each for each in files if each.is_file() and is_python(each)]
    tools = [each for each in tools if each.parent.name == "tools" or not each.suffix]
    programs = [*tools, *(ROOT / "docs").glob("*.py"), *(ROOT / "tests").rglob("bench_*.py")]
    names = {str(each.relative_to(ROOT)) for each in programs}
    assert {"tools/bench", "hooks/heat-hook"} <= names
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert names | {"hooks"} <= set(settings["tool"]["mypy"]["files"])
