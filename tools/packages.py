"""The versions of tools/constraints.txt, and uv with the indexes of this host's pip configuration.

usage: .venv/bin/python tools/packages.py UV-COMMAND ...

Runs the uv of the Python that runs this.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "tools" / "constraints.txt"
UV = Path(sys.executable).with_name("uv")
#: The variables of uv by pip's option, and what separates their values
#: (https://docs.astral.sh/uv/reference/environment/).
VARIABLES = {
    "cert": ("SSL_CERT_FILE", " "),
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
}


def environment(*, main_index_only: bool = False) -> dict[str, str]:
    """Return the environment in which uv finds the packages that pip would find.

    :param main_index_only: leave out the indexes and files that pip has beside its index.
    """
    pip = (sys.executable, "-m", "pip", "config", "list")
    lines = subprocess.run(pip, check=True, capture_output=True, text=True).stdout.splitlines()
    settings: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition("=")
        scope, _, name = name.rpartition(".")
        if scope == ":env:" or name not in settings:
            settings[name] = ast.literal_eval(value)
    # pip leaves out a folder that is not there with a warning; uv ends.
    links = settings.get("find-links", "").split()
    settings["find-links"] = " ".join(
        link for link in links if "://" in link or Path(link).expanduser().exists()
    )
    variables = dict(os.environ)
    if main_index_only:
        for beside in ("extra-index-url", "find-links"):
            settings.pop(beside, None)
            variables.pop(VARIABLES[beside][0], None)
        # Files of uv's own configuration can name indexes as well.
        variables["UV_NO_CONFIG"] = "1"
    return {
        **variables,
        "UV_SYSTEM_CERTS": "1",
        # pip trusts all its indexes equally.
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "VIRTUAL_ENV": sys.prefix,
        **{
            variable: separator.join(settings[option].split())
            for option, (variable, separator) in VARIABLES.items()
            if settings.get(option)
        },
    }


def pinned(text: str) -> list[Requirement]:
    """Return the requirements of a lock, or of OpenStack's upper constraints, without hashes."""
    # Imported late: tools/setup runs this file before anything is installed.
    from packaging.requirements import Requirement

    return [Requirement(line) for line in re.findall(r"^[A-Za-z0-9][^\\\n]*", text, re.MULTILINE)]


def version(requirement: Requirement) -> str:
    """Return the one version that a requirement of a lock allows."""
    (clause,) = requirement.specifier
    return clause.version


if __name__ == "__main__":
    os.execve(UV, [str(UV), *sys.argv[1:]], environment())  # noqa: S606
