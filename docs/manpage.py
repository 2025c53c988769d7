"""Write docs/man/hotplate.1 from the command's own parser: python docs/manpage.py."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from argparse_manpage.manpage import Manpage

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from hotplate.cli import whole_parser  # noqa: E402

PAGE = HERE / "man" / "hotplate.1"
DESCRIPTION = "images that OpenStack Heat can configure, built and tested"


def page() -> str:
    """Return the page, without a date, and with the processor of no host as a default."""
    parser = whole_parser()
    # argparse-manpage's own name, which no parser has by itself.
    vars(parser)["man_short_description"] = DESCRIPTION
    text = str(Manpage(parser, {"project_name": "hotplate", "url": ""}, format="pretty"))
    return re.sub(r'^(\.TH \S+ "?1"?) .*$', r"\1", text, count=1, flags=re.MULTILINE).strip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
