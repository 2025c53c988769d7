"""The logical volumes of LVM2, as the parts of a disk that they consist of.

Nothing is activated: the metadata are text in each physical volume, and a linear volume is a list
of places. Other kinds (thin, RAID, snapshots, caches, stripes) are named, and not read.

Source of the format: ``lib/format_text`` and ``libdaemon`` of LVM2 (``layout.h``, ``label.h``),
lvm.conf(5) for the syntax.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotplate.inspection.disk import Disk

SECTOR = 512
LABEL, LABEL_TYPE = b"LABELONE", b"LVM2 001"
#: The label is in one of the first four sectors.
LABEL_SECTORS = 4
MDA_MAGIC = b" LVM2 x[5A%r0N*>"
MDA_HEADER = 512
#: Limit of the areas of data, or of metadata, of a physical volume.
MAX_AREAS = 16
#: Limit of the bytes of metadata; an area has 1 MiB by default.
MAX_METADATA = 4 << 20
#: Limits of the nested sections, and of the extents of a volume.
MAX_DEPTH, MAX_SEGMENTS = 8, 4096

_TOKEN = re.compile(r'\s+|\#[^\n]*|("(?:[^"\\]|\\.)*")|([A-Za-z0-9_.+/@-]+)|([={}\[\],])', re.S)


@dataclass(frozen=True)
class Volume:
    """A logical volume.

    :param name: of its group and of itself, ``vg/root``.
    :param parts: offset and bytes of each part of the disk, in the order of the volume.
    :param refused: why it is not read, as it reads after "is"; "" when it is read.
    """

    name: str
    parts: tuple[tuple[int, int], ...] = ()
    refused: str = ""


@dataclass
class _Group:
    """A volume group: its metadata, and the offsets of its physical volumes on the disk."""

    name: str
    metadata: dict[str, Any]
    starts: dict[str, int] = field(default_factory=dict)


def volumes(disk: Disk, starts: Iterable[int]) -> list[Volume]:
    """Return the visible logical volumes of a disk; those with damaged metadata are left out.

    :param starts: the offsets of its physical volumes.
    """
    groups: dict[str, _Group] = {}
    for start in starts:
        try:
            pv, text = _physical(disk, start)
            ((name, metadata),) = (
                (name, each) for name, each in parsed(text).items() if isinstance(each, dict)
            )
            known = groups.setdefault(str(metadata.get("id")), _Group(name, metadata))
            # A physical volume that was away while its group was changed has old metadata.
            if metadata.get("seqno", 0) > known.metadata.get("seqno", 0):
                known.metadata = metadata
            known.starts[pv] = start
        except (ValueError, TypeError, LookupError, struct.error):
            continue
    return [volume for group in groups.values() for volume in _volumes(group)]


def _physical(disk: Disk, start: int) -> tuple[str, str]:
    """Return the id of a physical volume, and the text of its group's metadata."""
    head = disk.read(start, 2 * LABEL_SECTORS * SECTOR)
    for label in range(0, LABEL_SECTORS * SECTOR, SECTOR):
        if head[label : label + 8] == LABEL and head[label + 24 : label + 32] == LABEL_TYPE:
            break
    else:
        raise ValueError("no label")
    at = label + struct.unpack_from("<I", head, label + 20)[0]
    pv = head[at : at + 32].decode("ascii")
    areas = struct.iter_unpack("<QQ", head[at + 40 : at + 40 + 32 * MAX_AREAS])
    lists: list[list[tuple[int, int]]] = [[]]
    for offset, size in areas:
        # Each of the two lists, of data and of metadata, ends with an empty entry.
        if not offset:
            lists.append([])
        else:
            lists[-1].append((offset, size))
    for offset, _ in lists[1]:
        if text := _metadata(disk, start + offset):
            return pv, text
    raise ValueError("no metadata")


def _metadata(disk: Disk, area: int) -> str:
    """Return the text in an area of metadata, "" when it has none."""
    head = disk.read(area, MDA_HEADER)
    if head[4:20] != MDA_MAGIC:
        return ""
    size = struct.unpack_from("<Q", head, 32)[0]
    offset, length = struct.unpack_from("<QQ", head, 40)
    if not MDA_HEADER <= offset < size or not 0 < length <= min(size, MAX_METADATA):
        return ""
    # It is a ring behind the header.
    first = min(length, size - offset)
    data = disk.read(area + offset, first) + disk.read(area + MDA_HEADER, length - first)
    return data.decode("utf-8", "replace").partition("\0")[0]


def parsed(text: str) -> dict[str, Any]:
    """Return LVM's configuration syntax as nested maps.

    :raises ValueError: it is malformed, or too deep.

    >>> parsed('vg { seqno = 1 stripes = ["pv0", 0] # comment')
    Traceback (most recent call last):
    ValueError: a section has no end
    >>> parsed('vg { seqno = 1 stripes = ["pv0", 0] }')
    {'vg': {'seqno': 1, 'stripes': ['pv0', 0]}}
    """
    tokens = _tokens(text)
    stack: list[dict[str, Any]] = [{}]
    for name in tokens:
        if name == "}":
            if len(stack) == 1:
                raise ValueError("a section ends that has not begun")
            stack.pop()
            continue
        sign = next(tokens, "")
        if sign == "{" and len(stack) < MAX_DEPTH:
            section: dict[str, Any] = {}
            stack[-1][name] = section
            stack.append(section)
        elif sign == "=":
            stack[-1][name] = _value(next(tokens, ""), tokens)
        else:
            raise ValueError(f'"{sign}" comes after "{name}"')
    if len(stack) > 1:
        raise ValueError("a section has no end")
    return stack[0]


def _tokens(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"byte {at} is not understood")
        if match.lastindex:
            yield match[0]
        at = match.end()


def _value(first: str, tokens: Iterator[str]) -> str | int | list[str | int]:
    if first != "[":
        return _scalar(first)
    values = []
    for each in tokens:
        if each == "]":
            break
        if each != ",":
            values.append(_scalar(each))
    return values


def _scalar(word: str) -> str | int:
    if word.startswith('"'):
        return re.sub(r"\\(.)", r"\1", word[1:-1])
    return int(word) if word.isdigit() and len(word) < 20 else word


def _volumes(group: _Group) -> Iterator[Volume]:
    listed = group.metadata.get("logical_volumes")
    for name, each in (listed if isinstance(listed, dict) else {}).items():
        # The parts of others (of a pool, of RAID) are not visible.
        if isinstance(each, dict) and "VISIBLE" in str(each.get("status")):
            try:
                yield Volume(f"{group.name}/{name}", *_parts(group, each))
            except (ValueError, TypeError, LookupError, AttributeError):
                yield Volume(f"{group.name}/{name}", refused="described by damaged metadata")


def _parts(group: _Group, volume: dict[str, Any]) -> tuple[tuple[tuple[int, int], ...], str]:
    """Return the parts of a volume, or why it is not read."""
    extent = int(group.metadata["extent_size"]) * SECTOR
    parts: list[tuple[int, int]] = []
    end = 0
    for segment in sorted(
        (each for each in volume.values() if isinstance(each, dict) and "start_extent" in each),
        key=lambda each: each["start_extent"],
    )[:MAX_SEGMENTS]:
        kind = segment["type"]
        if kind not in ("striped", "linear"):
            return (), f"of the kind {kind}, and only linear volumes are read"
        if segment.get("stripe_count", 1) != 1:
            return (), "striped, and only linear volumes are read"
        pv, first = segment["stripes"]
        described = group.metadata["physical_volumes"][pv]
        start = group.starts.get(described["id"].replace("-", ""))
        if start is None:
            return (), "on another disk too, which is not part of the image"
        if segment["start_extent"] != end:
            raise ValueError("a gap between segments")
        end += segment["extent_count"]
        at = start + described["pe_start"] * SECTOR + first * extent
        length = segment["extent_count"] * extent
        if parts and sum(parts[-1]) == at:
            parts[-1] = (parts[-1][0], parts[-1][1] + length)
        else:
            parts.append((at, length))
    return tuple(parts), "" if parts else "empty"
