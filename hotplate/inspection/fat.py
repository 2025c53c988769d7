"""The files of a FAT file system, such as an EFI system partition: names, sizes and contents.

Source: Microsoft's "FAT: General Overview of On-Disk Format", 1.03.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator

from hotplate.errors import ImageError
from hotplate.inspection.disk import Disk
from hotplate.inspection.ext4 import ROOT_INODE, Inode

ENTRY = 32
DELETED, END = 0xE5, 0x00
#: Attributes of an entry.
VOLUME, DIRECTORY, LONG = 0x08, 0x10, 0x0F

#: Flags in the byte reserved by Microsoft: Windows and Linux mark lower case by them.
LOWER_STEM, LOWER_SUFFIX = 0x08, 0x10

MAX_FILES = 10_000
#: Limit of the bytes of a directory.
MAX_DIRECTORY = 1 << 20


class Fat:
    """A FAT file system by inodes, which it has none of.

    :param disk: its bytes.
    :raises ImageError: it is no FAT file system, or damaged.
    """

    unclean = False

    def __init__(self, disk: Disk, *, uuid: str = "", label: str = "") -> None:
        self.uuid, self.label = uuid, label
        self._disk = disk
        head = disk.read(0, 512)
        if len(head) < 512:
            raise self._damaged("ends in its first sector")
        sector, per_cluster, reserved, fats, entries, small = struct.unpack_from(
            "<HBHBHH", head, 11
        )
        self._cluster_bytes = sector * per_cluster
        size = struct.unpack_from("<H", head, 22)[0] or struct.unpack_from("<I", head, 36)[0]
        total = small or struct.unpack_from("<I", head, 32)[0]
        if sector not in (512, 1024, 2048, 4096) or not per_cluster or not fats or not size:
            raise self._damaged("has no sizes that can be")
        self._table = reserved * sector
        self._root = self._table + fats * size * sector
        self._root_bytes = entries * ENTRY
        self._data = self._root + -(-self._root_bytes // sector) * sector
        count = (total * sector - self._data) // self._cluster_bytes
        self._clusters = max(count, 0)
        # The number of clusters alone decides.
        self._bits = 12 if count < 4085 else 16 if count < 65525 else 32
        # The first cluster of the root; 0 for one in a place of its own.
        top = struct.unpack_from("<I", head, 44)[0] if self._bits == 32 else 0
        self._inodes = {
            ROOT_INODE: Inode(ROOT_INODE, stat.S_IFDIR | 0o755, 0, 0, 0, 1, 0, top, b"")
        }
        self._names: dict[int, dict[str, int]] = {}

    def _damaged(self, how: str) -> ImageError:
        return ImageError(f'the FAT file system of "{self._disk.name}" {how}')

    def inode(self, number: int) -> Inode:
        """See :meth:`.FileSystem.inode`; its flags are its first cluster."""
        return self._inodes[number]

    def entries(self, directory: Inode) -> dict[str, int]:
        """See :meth:`.FileSystem.entries`."""
        if not directory.is_directory:
            return {}
        if directory.number not in self._names:
            names = self._names[directory.number] = {}
            for name, attributes, first, size in self._listed(directory.flags):
                if len(self._inodes) > MAX_FILES:
                    raise self._damaged("has too many files")
                number = ROOT_INODE + len(self._inodes)
                kind = stat.S_IFDIR if attributes & DIRECTORY else stat.S_IFREG
                self._inodes[number] = Inode(number, kind | 0o755, 0, 0, size, 1, 0, first, b"")
                if "/" not in name:
                    names[name] = number
        return self._names[directory.number]

    def read(self, inode: Inode, limit: int) -> bytes:
        """See :meth:`.FileSystem.read`."""
        return self._chain(inode.flags, min(inode.size, limit)) if inode.flags else b""

    def link(self, inode: Inode) -> str:
        """Return "": it has no links."""
        del inode
        return ""

    def space(self) -> tuple[int, int, int, int, int]:
        """Return zeros: nobody asks for the space of an EFI system partition."""
        return 0, 0, 0, 0, 0

    def _chain(self, cluster: int, length: int) -> bytes:
        """Return bytes of a chain of clusters."""
        parts: list[bytes] = []
        left = length
        while left > 0 and 2 <= cluster < self._clusters + 2:
            if len(parts) > self._clusters:
                raise self._damaged("has a file that leads in circles")
            at = self._data + (cluster - 2) * self._cluster_bytes
            parts.append(self._disk.read(at, min(left, self._cluster_bytes)))
            left -= self._cluster_bytes
            cluster = self._next(cluster)
        return b"".join(parts)

    def _next(self, cluster: int) -> int:
        offset = cluster * self._bits // 8
        data = self._disk.read(self._table + offset, 4).ljust(4, b"\0")
        number: int = struct.unpack("<I", data)[0]
        if self._bits == 12:
            return (number >> 4 if cluster & 1 else number) & 0xFFF
        return number & (0xFFFF if self._bits == 16 else 0x0FFFFFFF)

    def _listed(self, cluster: int) -> Iterator[tuple[str, int, int, int]]:
        """Yield name, attributes, first cluster and size of a directory's entries."""
        if cluster:
            data = self._chain(cluster, MAX_DIRECTORY)
        else:
            data = self._disk.read(self._root, self._root_bytes)
        long = ""
        for at in range(0, len(data) - ENTRY + 1, ENTRY):
            entry = data[at : at + ENTRY]
            if entry[0] == END:
                return
            attributes = entry[11]
            if entry[0] == DELETED:
                long = ""
            elif attributes & 0x3F == LONG:
                # The parts of a long name are stored last first.
                part = entry[1:11] + entry[14:26] + entry[28:32]
                long = part.decode("utf-16-le", "replace").partition("\0")[0] + long
            else:
                name, long = long or _short(entry), ""
                if not attributes & VOLUME and name not in (".", ".."):
                    high, low = struct.unpack_from("<H", entry, 20)[0], entry[26:28]
                    first = high << 16 | struct.unpack("<H", low)[0]
                    yield name, attributes, first, struct.unpack_from("<I", entry, 28)[0]


def _short(entry: bytes) -> str:
    """Return the name of an entry without a long one, with a dot before its suffix."""
    stem, suffix = (part.decode("ascii", "replace").rstrip() for part in (entry[:8], entry[8:11]))
    stem = stem.lower() if entry[12] & LOWER_STEM else stem
    suffix = suffix.lower() if entry[12] & LOWER_SUFFIX else suffix
    return f"{stem}.{suffix}" if suffix else stem
