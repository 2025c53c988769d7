"""The man page, made from the command's own parser when a wheel is built.

A build hook of hatch (https://hatch.pypa.io/latest/plugins/build-hook/custom/).
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DESCRIPTION = "images that OpenStack Heat can configure, built and tested"


def page(checkout: Path) -> str:
    """Return the page, without a date.

    :param checkout: the directory that has the package.
    """
    # Loaded here: an editable installation has no man page, and need not have argparse-manpage.
    from argparse_manpage.manpage import Manpage

    sys.path.insert(0, str(checkout))
    try:
        from hotplate.cli import whole_parser
    finally:
        sys.path.remove(str(checkout))
    parser = whole_parser()
    # argparse-manpage's own name, which no parser has by itself.
    vars(parser)["man_short_description"] = DESCRIPTION
    text = str(Manpage(parser, {"project_name": "hotplate", "url": ""}, format="pretty"))
    return re.sub(r'^(\.TH \S+ "?1"?) .*$', r"\1", text, count=1, flags=re.MULTILINE).strip() + "\n"


class ManPage(BuildHookInterface):  # type: ignore[type-arg]
    """Adds ``share/man/man1/hotplate.1`` to a wheel."""

    def dependencies(self) -> list[str]:
        """Return what the page is made with; the parser needs PyYAML."""
        return ["argparse-manpage>=4.6", "PyYAML>=6"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the page, and name it to the wheel's builder."""
        if version == "editable":
            return
        file = Path(self.directory) / "hotplate.1"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page(Path(self.root)), encoding="utf-8")
        build_data["shared_data"][str(file)] = "share/man/man1/hotplate.1"

    def finalize(self, *_: object) -> None:
        """Remove the file, which the wheel has."""
        (Path(self.directory) / "hotplate.1").unlink(missing_ok=True)
