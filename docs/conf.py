"""Sphinx configuration.

The pages of the elements are made from their README.rst, the tables of the verdict from its code.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import hotplate  # noqa: E402
from hotplate.hookkit.contract import LINES  # noqa: E402
from hotplate.hookkit.contract_file import ROLES  # noqa: E402
from hotplate.verdict.console_patterns import PATTERNS  # noqa: E402
from hotplate.verdict.rules import RULES  # noqa: E402
from hotplate.verdict.stages import STAGES  # noqa: E402

project = "hotplate"
author = "The hotplate developers"
copyright = "The hotplate developers, Apache-2.0"
version = release = hotplate.__version__
extensions = ["sphinx.ext.autodoc"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
exclude_patterns = ["_build", "_tables", "examples"]
html_copy_source = False
html_theme = "alabaster"
html_theme_options = {"description": "Images that OpenStack Heat can configure"}
nitpicky = True


def _uses(element: Path) -> str:
    deps = element / "element-deps"
    names = deps.read_text().split() if deps.is_file() else []
    if not names:
        return ""
    shown = (
        f":doc:`{name}`" if (HERE.parent / "elements" / name).is_dir() else f"``{name}``"
        for name in sorted(names)
    )
    lines = textwrap.fill(", ".join(shown), 99, break_on_hyphens=False)
    return f"\n\nUses\n----\n\n{lines}\n"


def _write_element_pages() -> None:
    """docs/elements/<name>.rst: the README of each element and what it depends on."""
    pages = HERE / "elements"
    pages.mkdir(exist_ok=True)
    names = sorted(path.parent.name for path in (HERE.parent / "elements").glob("*/README.rst"))
    for old in pages.glob("*.rst"):
        old.unlink()
    for name in names:
        element = HERE.parent / "elements" / name
        text = (element / "README.rst").read_text()
        # Whatever underline the README's subsections have, "Uses" takes the dash.
        if re.search(r"^~{4,}$", text, re.MULTILINE) and not re.search(
            r"^-{4,}$", text, re.MULTILINE
        ):
            text += _uses(element).replace("----", "~~~~")
        else:
            text += _uses(element)
        (pages / f"{name}.rst").write_text(text)
    index = "Elements\n========\n\n.. toctree::\n   :maxdepth: 1\n\n"
    (pages / "index.rst").write_text(index + "".join(f"   {name}\n" for name in names))


_write_element_pages()


def _sentence(text: str) -> str:
    """Text of the code as a sentence of a page, with nothing that reStructuredText takes as its."""
    escaped = re.sub(r"([*`|\\])", r"\\\1", text)
    return f"{escaped[:1].upper()}{escaped[1:]}."


def _write_table(name: str, heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    """docs/_tables/<name>.rst: a table for a page to include."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for row in (heads, *rows):
        for number, cell in enumerate(row):
            mark = "     - " if number else "   * - "
            lines += textwrap.wrap(
                cell, 99, initial_indent=mark, subsequent_indent="       ", break_on_hyphens=False
            )
    folder = HERE / "_tables"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.rst").write_text("\n".join(lines) + "\n")


_write_table(
    "contract",
    ("Line", "What holds", "What to do about a hook that fails"),
    ((f"``{line.name}``", _sentence(line.sentence), _sentence(line.mend)) for line in LINES),
)
_write_table(
    "roles",
    ("Config", "What it has to do"),
    ((f"``{name}``", _sentence(what)) for name, what in ROLES.items()),
)
_write_table(
    "stages",
    ("Stage", "What to look at when it is not reached"),
    ((row.stage.value, _sentence(row.look)) for row in STAGES),
)
_write_table(
    "faults",
    ("Fault", "Stage", "What to look at or do"),
    (
        (f"``{rule.fault}``", rule.stage.value if rule.stage else "any", _sentence(rule.advice))
        for rule in RULES
    ),
)
_write_table(
    "console",
    ("Pattern", "The console shows that ...", "What to do", "Gives up"),
    (
        (
            f"``{row.name}``",
            _sentence(row.reason),
            _sentence(row.advice),
            "yes" if row.fatal else "no",
        )
        for row in PATTERNS
    ),
)


def setup(app: Any) -> None:
    """Take a reference for good when it names something that there is, on a page or not."""
    app.connect("missing-reference", _that_there_is)


def _that_there_is(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    del app, env
    if node.get("refdomain") != "py":
        return None
    target, module = node["reftarget"], node.get("py:module") or ""
    names = [target, f"{module}.{target}", f"{module}.{node.get('py:class')}.{target}"]
    names += _imported(module, target)
    # An exception may come from further down.
    names += [f"hotplate.errors.{target}", f"hotplate.timing.deadline.{target}"]
    return contnode if any(map(_is_there, names)) else None


def _imported(module: str, name: str) -> list[str]:
    """Where a module has a name from, also one that it imports for its annotations only."""
    if not module.startswith("hotplate"):
        return []
    source = Path(importlib.import_module(module).__file__ or "").read_text(encoding="utf-8")
    nodes = (each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.ImportFrom))
    return [f"{each.module}.{name}" for each in nodes if name in {a.name for a in each.names}]


def _is_there(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError):
        return False
    return True
