"""Sphinx configuration.

The pages of the elements are made from their README.rst; ``generated.py`` writes the parts of other
pages that come from the sources.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from docutils import nodes

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import hotplate  # noqa: E402

project = "hotplate"
author = "The hotplate developers"
copyright = "The hotplate developers, Apache-2.0"
version = release = hotplate.__version__
exclude_patterns = ["_build", "examples", "recipes"]
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
    """Write docs/elements/<name>.rst: each element's README and its dependencies."""
    pages = HERE / "elements"
    pages.mkdir(exist_ok=True)
    names = sorted(path.parent.name for path in (HERE.parent / "elements").glob("*/README.rst"))
    for old in pages.glob("*.rst"):
        old.unlink()
    for name in names:
        element = HERE.parent / "elements" / name
        text = (element / "README.rst").read_text()
        # "Uses" gets the underline of the README's subsections.
        if re.search(r"^~{4,}$", text, re.MULTILINE) and not re.search(
            r"^-{4,}$", text, re.MULTILINE
        ):
            text += _uses(element).replace("----", "~~~~")
        else:
            text += _uses(element)
        (pages / f"{name}.rst").write_text(text)


_write_element_pages()


def setup(app: Any) -> None:
    """Accept references to any existing object, whether or not a page documents it."""
    app.connect("missing-reference", _that_there_is)
    app.connect("doctree-read", _link_to_elements)


def _link_to_elements(app: Any, doctree: nodes.document) -> None:
    """Point links to an element's README, as a forge needs them, to the element's page."""
    del app
    for each in doctree.findall(nodes.reference):
        readme = re.fullmatch(r"\.\./elements/([\w-]+)/README\.rst", each.get("refuri", ""))
        if readme is not None:
            each["refuri"] = f"elements/{readme[1]}.html"


def _that_there_is(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    del app, env
    if node.get("refdomain") != "py":
        return None
    target, module = node["reftarget"], node.get("py:module") or ""
    names = [target, f"{module}.{target}", f"{module}.{node.get('py:class')}.{target}"]
    names += _imported(module, target)
    # A docstring may name an exception of a lower module.
    names += [f"hotplate.errors.{target}", f"hotplate.timing.deadline.{target}"]
    return contnode if any(map(_is_there, names)) else None


def _imported(module: str, name: str) -> list[str]:
    """Return the full names that a module imports a name from, also only for annotations."""
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
