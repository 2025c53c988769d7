"""Partitions of a disk, and the type of their file systems.

Sources: the UEFI specification, 5.2 (MBR) and 5.3 (GPT); ext4's and XFS's documentation of their
superblocks; Microsoft's specification of FAT.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from hotplate.image.inspect import ESP, HEAD, SECTOR, read_table
from hotplate.inspection import lvm
from hotplate.inspection.disk import Disk

#: Limit of the partitions; a GPT has room for as many.
MAX_PARTITIONS = 128

#: The GPT partition type of GRUB's second stage, as it is on the disk (GRUB manual, 3.4).
BIOS_BOOT = bytes.fromhex("4861682149646f6e744e656564454649")

#: The GPT partition types of a root file system, by its processor (Discoverable Partitions
#: Specification), as they are on the disk.
ROOTS = {
    "x86_64": bytes.fromhex("e3bc684fcde8b14d96e7fbcaf984b709"),
    "aarch64": bytes.fromhex("45b021b9f01dc341af444c6f280d3fae"),
}

#: Offset, bytes and name of the file systems of a partition.
_MAGIC = (
    (1024 + 56, b"\x53\xef", "ext4"),
    (0, b"XFSB", "xfs"),
    (0x10040, b"_BHRfS_M", "btrfs"),
    (82, b"FAT32", "vfat"),
    (54, b"FAT", "vfat"),
    (0, b"LUKS\xba\xbe", "luks"),
    # The label is in one of the first four sectors, by default in the second (pvcreate(8)).
    *((sector * SECTOR + 24, b"LVM2 001", "lvm") for sector in (1, 0, 2, 3)),
    (0, b"hsqs", "squashfs"),
    (4086, b"SWAPSPACE2", "swap"),
)


@dataclass(frozen=True)
class Partition:
    """A partition, a whole disk without a table, or a volume of LVM.

    :param number: as in the table, from 1 on; 0 for a whole disk or a volume.
    :param start: bytes from the start of the disk; of a volume, of its first piece.
    :param size: bytes.
    :param purpose: ``efi system``, ``bios boot`` or ``data``.
    :param file_system: its name, "" when unknown.
    :param kind: the type in a GPT, as a UUID; "" for others.
    :param uuid: its own UUID in a GPT (``PARTUUID``).
    :param label: its name in a GPT (``PARTLABEL``).
    :param volume: the names of the volume and its group, as ``vg/root``; "" for a partition.
    :param pieces: offset and bytes of each piece of a volume.
    :param refused: why a volume is not read, as it reads after "is".
    """

    number: int
    start: int
    size: int
    purpose: str
    file_system: str
    kind: str = ""
    uuid: str = ""
    label: str = ""
    volume: str = ""
    pieces: tuple[tuple[int, int], ...] = ()
    refused: str = ""

    def __str__(self) -> str:
        if self.volume:
            return f'the volume "{self.volume}"'
        return f"partition {self.number}" if self.number else "the disk"

    def on(self, disk: Disk) -> Disk:
        """Return its bytes as a disk of its own."""
        return disk.part(self.pieces or [(self.start, self.size)])


def partitions(disk: Disk) -> list[Partition]:
    """Return the partitions of a disk in the order of its table; the disk itself without one.

    The volumes of LVM come after them.
    """
    head = disk.read(0, HEAD)
    table = read_table(head)
    if table is None:
        listed = [Partition(0, 0, disk.size, "data", file_system_of(disk, 0))]
    else:
        entries = _gpt(disk, head) if table.kind == "gpt" else _mbr(disk, head)
        listed = [each for each in entries if 0 < each.start < disk.size]
    return [*listed, *_volumes(disk, listed)]


def _volumes(disk: Disk, listed: list[Partition]) -> Iterator[Partition]:
    starts = [each.start for each in listed if each.file_system == "lvm"]
    for volume in lvm.volumes(disk, starts):
        first = volume.parts[0][0] if volume.parts else 0
        name = "" if volume.refused else file_system_of(disk.part(volume.parts), 0)
        yield Partition(
            0,
            first,
            sum(length for _, length in volume.parts),
            "data",
            name,
            volume=volume.name,
            pieces=volume.parts,
            refused=volume.refused,
        )


def marked_root(disk: Disk, processor: str) -> int:
    """Return the number of the partition that a GPT marks as the root of a processor, 0 for none.

    :param processor: as in :data:`ROOTS`.
    """
    head = disk.read(0, HEAD)
    table = read_table(head)
    if table is None or table.kind != "gpt" or processor not in ROOTS:
        return 0
    kinds = ((number, head[at : at + 16]) for number, at in _entries(head))
    return next((number for number, kind in kinds if kind == ROOTS[processor]), 0)


def _entries(head: bytes) -> Iterator[tuple[int, int]]:
    """Yield the numbers of the entries of a GPT, with their places."""
    size = struct.unpack_from("<I", head, SECTOR + 84)[0] or 128
    places = range(2 * SECTOR, HEAD - 47, size)
    return zip(range(1, MAX_PARTITIONS + 1), places, strict=False)


def _gpt(disk: Disk, head: bytes) -> Iterator[Partition]:
    for number, at in _entries(head):
        kind = head[at : at + 16]
        first, last = struct.unpack_from("<QQ", head, at + 32)
        if any(kind) and last >= first:
            yield Partition(
                number,
                first * SECTOR,
                (last - first + 1) * SECTOR,
                {ESP: "efi system", BIOS_BOOT: "bios boot"}.get(kind, "data"),
                file_system_of(disk, first * SECTOR),
                str(uuid.UUID(bytes_le=kind)),
                str(uuid.UUID(bytes_le=head[at + 16 : at + 32])),
                head[at + 56 : at + 128].decode("utf-16-le", "replace").partition("\0")[0],
            )


def _mbr(disk: Disk, head: bytes) -> Iterator[Partition]:
    """Yield the primary partitions; images for clouds have no others."""
    for number, at in enumerate(range(446, 510, 16), 1):
        kind = head[at + 4]
        first, count = struct.unpack_from("<II", head, at + 8)
        if kind and count:
            purpose = "efi system" if kind == 0xEF else "data"
            start, size = first * SECTOR, count * SECTOR
            # The disk's signature, and the number in hexadecimal (libblkid's partitions/dos.c).
            own = f"{struct.unpack_from('<I', head, 440)[0]:08x}-{number:02x}"
            yield Partition(number, start, size, purpose, file_system_of(disk, start), uuid=own)


#: Offsets of the UUID and the label, and the bytes of the label, by the file system.
_IDENTITY = {
    "ext4": (1024 + 0x68, 1024 + 0x78, 16),
    "xfs": (32, 108, 12),
    "btrfs": (0x10020, 0x1012B, 256),
}


def identity(disk: Disk, file_system: str) -> tuple[str, str]:
    """Return the UUID and the label of a file system as blkid(8) shows them, "" when unknown.

    :param disk: its bytes.
    """
    if file_system == "vfat":
        wide = disk.read(82, 5) == b"FAT32"
        raw = disk.read(67 if wide else 39, 15).ljust(15, b"\0")
        serial = struct.unpack_from("<I", raw)[0]
        label = raw[4:].decode("ascii", "replace").strip()
        return f"{serial >> 16:04X}-{serial & 0xFFFF:04X}", "" if label == "NO NAME" else label
    if file_system not in _IDENTITY:
        return "", ""
    uuid_at, label_at, length = _IDENTITY[file_system]
    name = disk.read(label_at, length).partition(b"\0")[0].decode("utf-8", "replace")
    return str(uuid.UUID(bytes=disk.read(uuid_at, 16).ljust(16, b"\0"))), name


def file_system_of(disk: Disk, start: int) -> str:
    """Return the name of the file system at an offset, "" when unknown."""
    for at, magic, name in _MAGIC:
        if disk.read(start + at, len(magic)) == magic:
            return name
    return ""
