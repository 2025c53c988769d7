"""The locations of hotplate's own parts on the host."""

from __future__ import annotations

import sys
from pathlib import Path

from hotplate.errors import HostError


def _shared(name: str) -> Path:
    """Return a directory beside the package, or in share/hotplate when installed."""
    checkout = Path(__file__).resolve().parent.parent / name
    # In site-packages a neighbour of that name belongs to another package.
    if checkout.is_dir() and (checkout.parent / "pyproject.toml").is_file():
        return checkout
    installed = Path(sys.prefix) / "share" / "hotplate" / name
    if installed.is_dir():
        return installed
    raise HostError(
        f'hotplate\'s own directory "{name}" was found neither in a checkout nor in "{installed}"',
        hint="install hotplate again: pip install --force-reinstall hotplate",
    )


def elements_dir() -> Path:
    """Return the directory of hotplate's diskimage-builder elements, for ``ELEMENTS_PATH``."""
    return _shared("elements")


def hooks_dir() -> Path:
    """Return the directory of hotplate's hooks, which contains their library ``heat_config``."""
    return _shared("hooks")
