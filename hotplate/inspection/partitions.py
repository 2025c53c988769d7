"""Partitions of a disk, and the type of their file systems.

Sources: the UEFI specification, 5.2 (MBR) and 5.3 (GPT); ext4's and XFS's documentation of their
superblocks; Microsoft's specification of FAT.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from hotplate.image.inspect import ESP, HEAD, SECTOR, read_table
from hotplate.inspection.disk import Disk

#: Limit of the partitions; a GPT has room for as many.
MAX_PARTITIONS = 128

#: The GPT partition type of GRUB's second stage, as it is on the disk (GRUB manual, 3.4).
BIOS_BOOT = bytes.fromhex("4861682149646f6e744e656564454649")

#: Offset, bytes and name of the file systems of a partition.
_MAGIC = (
    (1024 + 56, b"\x53\xef", "ext4"),
    (0, b"XFSB", "xfs"),
    (0x10040, b"_BHRfS_M", "btrfs"),
    (82, b"FAT32", "vfat"),
    (54, b"FAT", "vfat"),
    (0, b"LUKS\xba\xbe", "luks"),
    (536, b"LVM2 001", "lvm"),
    (0, b"hsqs", "squashfs"),
    (4086, b"SWAPSPACE2", "swap"),
)


@dataclass(frozen=True)
class Partition:
    """A partition, or a whole disk without a table.

    :param number: as in the table, from 1 on; 0 for a whole disk.
    :param start: bytes from the start of the disk.
    :param size: bytes.
    :param purpose: ``efi system``, ``bios boot`` or ``data``.
    :param file_system: its name, "" when unknown.
    """

    number: int
    start: int
    size: int
    purpose: str
    file_system: str

    def __str__(self) -> str:
        return f"partition {self.number}" if self.number else "the disk"


def partitions(disk: Disk) -> list[Partition]:
    """Return the partitions of a disk in the order of its table; the disk itself without one."""
    head = disk.read(0, HEAD)
    table = read_table(head)
    if table is None:
        return [Partition(0, 0, disk.size, "data", file_system_of(disk, 0))]
    entries = _gpt(head) if table.kind == "gpt" else _mbr(head)
    return [
        Partition(number, start, size, purpose, file_system_of(disk, start))
        for number, start, size, purpose in entries
        if 0 < start < disk.size
    ]


def _gpt(head: bytes) -> Iterator[tuple[int, int, int, str]]:
    size = struct.unpack_from("<I", head, SECTOR + 84)[0] or 128
    for number, at in enumerate(range(2 * SECTOR, HEAD - 47, size), 1):
        kind = head[at : at + 16]
        first, last = struct.unpack_from("<QQ", head, at + 32)
        if any(kind) and last >= first and number <= MAX_PARTITIONS:
            purpose = {ESP: "efi system", BIOS_BOOT: "bios boot"}.get(kind, "data")
            yield number, first * SECTOR, (last - first + 1) * SECTOR, purpose


def _mbr(head: bytes) -> Iterator[tuple[int, int, int, str]]:
    """Yield the primary partitions; images for clouds have no others."""
    for number, at in enumerate(range(446, 510, 16), 1):
        kind = head[at + 4]
        first, count = struct.unpack_from("<II", head, at + 8)
        if kind and count:
            purpose = "efi system" if kind == 0xEF else "data"
            yield number, first * SECTOR, count * SECTOR, purpose


def file_system_of(disk: Disk, start: int) -> str:
    """Return the name of the file system at an offset, "" when unknown."""
    for at, magic, name in _MAGIC:
        if disk.read(start + at, len(magic)) == magic:
            return name
    return ""
