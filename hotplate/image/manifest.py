"""NAME.manifest.json, left by a build beside its image: the image's contents and its files.

Its keys are those of the JSON schema ``manifest.schema.json``, which is beside this file.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hotplate.errors import ImageError
from hotplate.image.checksum import read_regular, sha256_of
from hotplate.image.plan import groups_of
from hotplate.image.qcow2 import FORMATS

SUFFIX = ".manifest.json"
SUFFIXES = tuple(f".{kind}" for kind in FORMATS)
#: Format written by a build, raised when a key is removed or changes its meaning. A manifest
#: without one is from a hotplate before 0.1.0, and has the other keys of format 1.
FORMAT = 1

#: Limit of the bytes of a manifest; one with 10,000 packages has 1 MB.
MAX_SIZE = 16 << 20

#: Limit of nested maps and lists; format 1 has three.
MAX_DEPTH = 8


def path_for(image: Path) -> Path:
    """Return the path of the manifest of an image."""
    stem = stem_of(image)
    return stem.with_name(stem.name + SUFFIX)


def stem_of(image: Path) -> Path:
    """Return the name of an image without its suffix, the prefix of all files beside it."""
    return image.with_suffix("") if image.suffix in SUFFIXES else image


def schema() -> dict[str, Any]:
    """Return the schema of a manifest, in JSON Schema's draft 2020-12."""
    document: dict[str, Any] = json.loads(
        Path(__file__).with_name("manifest.schema.json").read_text(encoding="utf-8")
    )
    return document


def is_readable(document: Mapping[str, Any]) -> bool:
    """Return True for a manifest in a supported format."""
    return bool(document.get("format", FORMAT) == FORMAT)


def read(image: Path) -> dict[str, Any]:
    """Return the manifest beside an image, which may come from a stranger.

    :return: empty when it is missing or unreadable: no regular file, too large, not JSON.
    """
    with contextlib.suppress(OSError, ValueError, RecursionError):
        document = json.loads(read_regular(path_for(image), MAX_SIZE))
        if isinstance(document, dict) and _is_shallow(document, MAX_DEPTH):
            return document
    return {}


def _is_shallow(value: object, levels: int) -> bool:
    """Return True when a value can be printed without exhausting the stack."""
    if isinstance(value, dict):
        value = [*value.values()]
    if not isinstance(value, list):
        return True
    return levels > 0 and all(_is_shallow(each, levels - 1) for each in value)


def check_set(image: Path, beside: Mapping[str, Path], *, checksums: Path | None = None) -> None:
    """Check that an image and the files beside it were built together.

    Without a manifest there is nothing to compare.

    :param beside: the files by the suffix that a build gives them, ``vmlinuz`` and ``initrd``.
    :param checksums: see :func:`~hotplate.image.checksum.sha256_of`.
    :raises ImageError: when a file is not the one in the manifest.
    """
    manifest = read(image)
    digests = manifest.get("beside")
    expected = digests.copy() if isinstance(digests, dict) else {}
    files = {suffix: path for suffix, path in beside.items() if suffix in expected}
    if files and "sha256" in manifest:
        files["image"], expected["image"] = image, manifest["sha256"]
    for name, file in files.items():
        if sha256_of(file, checksums) != expected[name]:
            raise ImageError(
                f'"{file}" is not the file that "{path_for(image).name}" names: the files of two '
                "builds are mixed, or it was changed since",
                hint="build the image again, or if the files belong together: "
                f"rm {shlex.quote(str(path_for(image)))}",
            )


def groups_without_hook(
    image: Path,
    groups: Collection[str],
    *,
    ours: Path,
    others: Collection[Path],
    checksums: Path | None = None,
) -> list[str]:
    """Return the groups for which an image certainly has no hook, without booting it.

    The builder's own elements may bring any hook: for an image with one the result is empty.

    :param ours: hotplate's directory of elements.
    :param others: directories of elements without hooks, such as diskimage-builder's.
    :param checksums: see :func:`~hotplate.image.checksum.sha256_of`.
    """
    elements = elements_of(image, checksums=checksums)
    surveyed = {each.name for folder in (ours, *others) for each in folder.iterdir()}
    if elements is None or not surveyed.issuperset(elements):
        return []
    missing = []
    for group in groups:
        bring = {each.name for each in ours.iterdir() if group in groups_of(each)}
        if bring and not bring & set(elements):
            missing.append(group)
    return missing


def elements_of(image: Path, *, checksums: Path | None = None) -> Collection[str] | None:
    """Return the elements of an image, None without a manifest of its own.

    :param checksums: see :func:`~hotplate.image.checksum.sha256_of`.
    """
    manifest = read(image)
    with contextlib.suppress(OSError):
        if manifest.get("sha256") == sha256_of(image, checksums):
            elements = manifest.get("elements")
            return tuple(elements) if isinstance(elements, (dict, list)) and elements else None
    return None
