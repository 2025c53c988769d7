"""Images by name, as ``--image NAME=PATH`` gives them to a cloud."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from hotplate.errors import UsageError
from hotplate.image.inspect import Image, find

NAME = re.compile(r"[^\s=/][^=/]{0,254}")
"""What an image may be called: no path, as which a forgotten name would be taken."""


def parse(words: Iterable[str]) -> dict[str, Path]:
    """Return the files by the names that are given for them.

    :raises UsageError: for what is not NAME=PATH, a name that is given twice, or no such file.
    """
    files: dict[str, Path] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not NAME.fullmatch(name) or not path:
            raise UsageError(f'"{word}" gives no image a name; expected NAME=PATH')
        if name in files:
            raise UsageError(f'the image name "{name}" is given twice')
        files[name] = find(Path(path))
    return files


def open_all(
    files: Mapping[str, Path], *, allow_backing: bool, checksums: Path
) -> dict[str, Image]:
    """Open images by name; see :meth:`Image.open`."""
    return {
        name: Image.open(path, allow_backing=allow_backing, checksums=checksums)
        for name, path in files.items()
    }
