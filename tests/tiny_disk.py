"""The smallest disk that counts as bootable; no test boots it."""

from __future__ import annotations

import struct
from pathlib import Path

SECTOR = 512


def make(path: Path) -> Path:
    """Write a raw disk with a partition table and boot code that stops the processor."""
    disk = bytearray(2048 * SECTOR)
    disk[0:3] = b"\xfa\xf4\xfd"  # cli; hlt
    # One active partition of type Linux, from sector 1 on.
    disk[446:462] = struct.pack("<B3sB3sII", 0x80, b"\0\2\0", 0x83, b"\xff" * 3, 1, 2047)
    disk[510:512] = b"\x55\xaa"
    path.write_bytes(disk)
    return path
