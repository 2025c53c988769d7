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
    # Imported late: an editable installation has no man page and may lack argparse-manpage.
    from argparse_manpage.manpage import Manpage

    sys.path.insert(0, str(checkout))
    try:
        from hotplate.cli import whole_parser
    finally:
        sys.path.remove(str(checkout))
    parser = whole_parser()
    # argparse-manpage reads this attribute, which argparse does not set.
    vars(parser)["man_short_description"] = DESCRIPTION
    text = str(Manpage(parser, {"project_name": "hotplate", "url": ""}, format="pretty"))
    return re.sub(r'^(\.TH \S+ "?1"?) .*$', r"\1", text, count=1, flags=re.MULTILINE).strip() + "\n"


class ManPage(BuildHookInterface):  # type: ignore[type-arg]
    """Adds ``share/man/man1/hotplate.1`` to a wheel."""

    def dependencies(self) -> list[str]:
        """Return the packages that make the page; the parser needs PyYAML."""
        return ["argparse-manpage>=4.6", "PyYAML>=6"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the page and add it to the wheel."""
        if version == "editable":
            return
        file = Path(self.directory) / "hotplate.1"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page(Path(self.root)), encoding="utf-8")
        build_data["shared_data"][str(file)] = "share/man/man1/hotplate.1"

    def finalize(self, *_: object) -> None:
        """Remove the file, which is now in the wheel."""
        (Path(self.directory) / "hotplate.1").unlink(missing_ok=True)
