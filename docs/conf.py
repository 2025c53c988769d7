"""Sphinx configuration; the pages of the elements are made from their README.rst."""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import hotplate  # noqa: E402

project = "hotplate"
author = "The hotplate developers"
copyright = "The hotplate developers, Apache-2.0"
version = release = hotplate.__version__
extensions = ["sphinx.ext.autodoc"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {"description": "Images that OpenStack Heat can configure"}
nitpicky = False


def _uses(element: Path) -> str:
    deps = element / "element-deps"
    names = deps.read_text().split() if deps.is_file() else []
    if not names:
        return ""
    shown = (
        f":doc:`{name}`" if (HERE.parent / "elements" / name).is_dir() else f"``{name}``"
        for name in sorted(names)
    )
    return "\n\nUses\n----\n\n" + ", ".join(shown) + "\n"


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
