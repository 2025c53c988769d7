"""Check of a VMDK file, which may name other files as its extents or its parent.

As with a qcow2 file (:mod:`hotplate.image.qcow2`), QEMU would open whatever the names lead to, so
only the two kinds that are whole in one file are accepted, as by Glance and Nova
(``VMDKInspector`` of oslo.utils' ``imageutils.format_inspector``).

Source of the format: VMware's "Virtual Disk Format 5.0"; ``block/vmdk.c`` of QEMU.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

SECTOR = 512
#: The kinds that are one file.
CREATE_TYPES = ("monolithicSparse", "streamOptimized")
#: QEMU looks for a parent's name in that many bytes (``DESC_SIZE``) from the second sector on,
#: whatever the header says.
DESCRIPTOR = 20 * SECTOR
#: Limit of the bytes of a descriptor to read.
MAX_DESCRIPTOR = 1 << 20

# Blanks but no line feeds at first: of many empty lines, each would be the start of all others.
_CREATE_TYPE = re.compile(rb'^[^\S\n]*createType\s*=\s*"([^"]*)"', re.M)
_EXTENT = re.compile(rb"^[^\S\n]*(?:RW|RDONLY|NOACCESS)\s+\d+\s+(\w+)", re.M)


def fault(file: Path) -> str:
    """Return why a VMDK file is refused, as it reads after its name; "" when it is accepted."""
    with file.open("rb") as stream:
        head = stream.read(SECTOR)
        if head[:4] != b"KDMV":
            return "is a VMDK descriptor or of an old version, whose data are in other files"
        if len(head) < SECTOR:
            return "is truncated"
        capacity, _, sector, sectors = struct.unpack_from("<QQQQ", head, 12)
        # QEMU then takes the descriptor for one of a disk in several files.
        if not capacity:
            return "has no size, so that its data are in other files"
        stream.seek(SECTOR)
        fixed = stream.read(DESCRIPTOR)
        stream.seek(min(sector * SECTOR, file.stat().st_size))
        described = stream.read(min(sectors * SECTOR, MAX_DESCRIPTOR))
    if b"parentFileNameHint" in fixed + described:
        return "names another file as its parent"
    kinds = {kind.decode(errors="replace") for kind in _CREATE_TYPE.findall(described)}
    if not kinds or not kinds <= {*CREATE_TYPES}:
        return f'is of the kind "{", ".join(sorted(kinds)) or "unknown"}", which is several files'
    extents = _EXTENT.findall(described)
    if len(extents) > 1 or any(each != b"SPARSE" for each in extents):
        return "names other files as its extents"
    return ""
