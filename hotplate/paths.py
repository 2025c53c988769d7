"""Where hotplate keeps things on the host, and where it finds its own parts.

Everything that can be made again lives under one cache directory.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from hotplate.errors import HostError


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory of everything that can be made again.

    ``$HOTPLATE_CACHE``, else ``$XDG_CACHE_HOME/hotplate``, else ``~/.cache/hotplate``.
    """
    if chosen := environ.get("HOTPLATE_CACHE"):
        return Path(chosen)
    if base := environ.get("XDG_CACHE_HOME"):
        return Path(base) / "hotplate"
    return Path(environ.get("HOME") or "/root") / ".cache" / "hotplate"


def _shared(name: str) -> Path:
    """Return a directory that lies beside the package, or in share/hotplate when installed."""
    checkout = Path(__file__).resolve().parent.parent / name
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
