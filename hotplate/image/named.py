"""Images by name, as ``--image NAME=PATH`` gives them to a cloud."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from hotplate.errors import UsageError
from hotplate.image.inspect import find

#: Valid names of images: no path, so that a path without a name is an error.
NAME = re.compile(r"[^\s=/][^=/]{0,254}")


def parse(words: Iterable[str]) -> dict[str, Path]:
    """Return the files by their given names.

    :raises UsageError: for a malformed NAME=PATH, a duplicate name, or a missing file.
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
