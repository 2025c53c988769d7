"""A comparison as text, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from hotplate.inspection.compare import (
    NO_PACKAGE,
    Comparison,
    Difference,
    How,
    OwnersFiles,
    Snapshot,
)
from hotplate.inspection.show import FORMAT, megabytes
from hotplate.text import clean_all, clean_line

SIGNS = {How.ADDED: "+", How.REMOVED: "-", How.CHANGED: "~"}
OWNERS_SHOWN = 20
#: Limit of the shown files without a package; JSON has all.
FILES_SHOWN = 8


def as_document(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison for ``--json``."""
    parts = ("facts", "packages", "hooks", "services", "users")
    document = {
        "format": FORMAT,
        "same": comparison.same,
        "images": [_image(comparison.first), _image(comparison.second)],
        **{part: [asdict(each) for each in getattr(comparison, part)] for part in parts},
        "owners": [asdict(each) for each in comparison.owners],
    }
    result: dict[str, Any] = clean_all(document)
    return result


def _image(side: Snapshot) -> dict[str, Any]:
    file = side.inspection.file
    return {
        "image": str(file.path),
        "bytes": file.path.stat().st_size,
        "virtual_size": file.virtual_size,
        "files": len(side.files),
        "files_bytes": sum(side.sizes().values()),
        "sizes": side.sizes(),
    }


def as_text(comparison: Comparison) -> str:
    """Return the comparison as text."""
    return "\n".join(clean_line(line).rstrip() for line in _lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    first, second = _image(comparison.first), _image(comparison.second)
    yield f"first   {first['image']}"
    yield f"second  {second['image']}"
    for name, key in (("image", "bytes"), ("disk", "virtual_size"), ("files", "files_bytes")):
        yield f"{name:7} {_change(first[key], second[key])}"
    if comparison.same:
        yield "no difference"
    for title, part in (
        ("system", comparison.facts),
        ("hooks", comparison.hooks),
        ("packages", comparison.packages),
        ("services that a boot starts", comparison.services),
        ("users", comparison.users),
    ):
        yield from _part(title, part)
    yield from _owners(comparison.owners)


def _change(before: int, after: int) -> str:
    if before == after:
        return f"{megabytes(before)}, the same"
    return f"{megabytes(before)} -> {megabytes(after)} ({(after - before) / 1e6:+,.1f} MB)"


def _part(title: str, differences: tuple[Difference, ...]) -> Iterator[str]:
    if differences:
        counts = [(sum(each.how is how for each in differences), how.value) for how in How]
        yield f"{title}: {', '.join(f'{count} {word}' for count, word in counts if count)}"
    for each in differences:
        values = f"{each.before} -> {each.after}" if each.how is How.CHANGED else ""
        yield f"  {SIGNS[each.how]} {each.name} {values or each.before or each.after}"


def _owners(owners: tuple[OwnersFiles, ...]) -> Iterator[str]:
    if owners:
        yield f"files, by the package that brought them: {len(owners)} with a difference"
    for each in owners[:OWNERS_SHOWN]:
        counts = " ".join(f"{SIGNS[how]}{each.count(how)}" for how in How if each.count(how))
        yield f"  {each.owner}: {counts}; {_change(each.before, each.after)}"
        if each.owner == NO_PACKAGE:
            yield from (f"      {SIGNS[file.how]} {file.name}" for file in each.files[:FILES_SHOWN])
            if len(each.files) > FILES_SHOWN:
                yield f"      and {len(each.files) - FILES_SHOWN} more: --json"
    if len(owners) > OWNERS_SHOWN:
        yield f"  and {len(owners) - OWNERS_SHOWN} more packages: --json"
