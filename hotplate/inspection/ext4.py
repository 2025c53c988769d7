"""A reader of ext2, ext3 and ext4: directories, files and links, nothing else.

Source of the format: "ext4 Data Structures and Algorithms" in the documentation of Linux
(``Documentation/filesystems/ext4``). The journal is not replayed; :attr:`Ext4.unclean` is set for
a file system that was not unmounted.
"""

from __future__ import annotations

import itertools
import shlex
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from hotplate.errors import ImageError, Outcome
from hotplate.inspection.disk import Disk

ROOT_INODE = 2
MAGIC = 0xEF53

_FILETYPE, _RECOVER, _64BIT = 0x2, 0x4, 0x80
#: Supported incompatible features: filetype, recover, extents, 64bit, mmp, flex_bg, ea_inode,
#: csum_seed, largedir.
_READABLE = 0x2 | 0x4 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x2000 | 0x4000

_INODE_EXTENTS, _INODE_ENCRYPTED = 0x80000, 0x800
_EXTENT_MAGIC = 0xF30A
_MAX_DEPTH = 5
#: Limit of the extent nodes of one file; 16 MiB of isolated blocks need fewer.
MAX_NODES = 4096
#: Limit of the bytes of a directory.
MAX_DIRECTORY = 16 << 20


class NotReadHere(ImageError):
    """A file system that hotplate or this host cannot read; the image may be good."""

    outcome = Outcome.HOST


@dataclass(frozen=True)
class Inode:
    """A file, a directory, a link or another type of inode.

    :param mode: its type and permissions, as in stat(2).
    :param size: bytes.
    :param modified: seconds since the epoch.
    """

    number: int
    mode: int
    uid: int
    gid: int
    size: int
    links: int
    modified: int
    flags: int
    blocks: bytes

    @property
    def is_directory(self) -> bool:
        """Return whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Return whether it is a regular file."""
        return stat.S_ISREG(self.mode)

    @property
    def is_link(self) -> bool:
        """Return whether it is a symbolic link."""
        return stat.S_ISLNK(self.mode)


@dataclass(frozen=True)
class _Extent:
    """Contiguous blocks: ``count`` of a file from ``logical`` on."""

    logical: int
    count: int
    physical: int


class Ext4:
    """A file system; see :class:`~hotplate.inspection.tree.FileSystem`.

    :param disk: its bytes.
    :raises ImageError: it is damaged, or, as :class:`NotReadHere`, has an unsupported feature.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        block = disk.read(1024, 1024).ljust(1024, b"\0")
        (self._inodes,) = struct.unpack_from("<I", block, 0)
        first, log_size = struct.unpack_from("<II", block, 0x14)
        (self._inodes_per_group,) = struct.unpack_from("<I", block, 0x28)
        magic, revision = struct.unpack_from("<H18xI", block, 0x38)
        incompatible = struct.unpack_from("<I", block, 0x60)[0]
        self._inode_size = struct.unpack_from("<H", block, 0x58)[0] if revision else 128
        wide = incompatible & _64BIT
        self._descriptor = struct.unpack_from("<H", block, 0xFE)[0] if wide else 32
        self._check(magic, log_size, incompatible)
        self._has_kinds = bool(incompatible & _FILETYPE)
        self._block = 1024 << log_size
        self._groups = (first + 1) * self._block
        self.unclean = bool(incompatible & _RECOVER)
        self.uuid = block[0x68:0x78].hex()
        self.label = block[0x78:0x88].rstrip(b"\0").decode(errors="replace")

    def _check(self, magic: int, log_size: int, incompatible: int) -> None:
        if other := incompatible & ~_READABLE:
            words = f"it has features that are not known here ({other:#x})"
            raise self._unreadable(words, NotReadHere)
        sound = (
            magic == MAGIC
            and log_size <= 6
            and self._inodes_per_group
            and self._inode_size in (128, 256, 512, 1024, 2048, 4096)
            and 32 <= self._descriptor <= 1024
        )
        if not sound:
            raise self._unreadable("its superblock is damaged")

    def _unreadable(self, why: str, kind: type[ImageError] = ImageError) -> ImageError:
        return kind(
            f'the ext4 file system in the image "{self._disk.name}" cannot be read: {why}',
            hint="look at it with libguestfs: "
            f"apt-get install guestfish && guestfish --ro -a {shlex.quote(self._disk.name)} -i",
        )

    def space(self) -> tuple[int, int, int, int, int]:
        """See :meth:`.FileSystem.space`.

        A mounted file system counts the free ones in memory, and writes them when it is unmounted.
        """
        block = self._disk.read(1024, 1024)
        inodes, *low, free_inodes = struct.unpack_from("<5I", block)
        high = struct.unpack_from("<3I", block, 0x150) if self._descriptor >= 64 else (0, 0, 0)
        blocks, reserved, free = (each | more << 32 for each, more in zip(low, high, strict=True))
        return inodes, free_inodes, free, max(0, free - reserved), blocks

    def inode(self, number: int) -> Inode:
        """See :meth:`.FileSystem.inode`."""
        if not 0 < number <= self._inodes:
            raise self._unreadable(f"it has no inode {number}")
        group, index = divmod(number - 1, self._inodes_per_group)
        at = self._groups + group * self._descriptor
        descriptor = self._disk.read(at, self._descriptor).ljust(self._descriptor, b"\0")
        (table,) = struct.unpack_from("<I", descriptor, 8)
        if self._descriptor >= 64:
            table |= struct.unpack_from("<I", descriptor, 0x28)[0] << 32
        at = table * self._block + index * self._inode_size
        return self._parsed(number, self._disk.read(at, 128).ljust(128, b"\0"))

    def _parsed(self, number: int, raw: bytes) -> Inode:
        mode, uid, size = struct.unpack_from("<HHI", raw)
        modified = struct.unpack_from("<I", raw, 0x10)[0]
        gid, links = struct.unpack_from("<HH", raw, 0x18)
        high_uid, high_gid = struct.unpack_from("<HH", raw, 0x78)
        if stat.S_ISREG(mode):
            size |= struct.unpack_from("<I", raw, 0x6C)[0] << 32
        return Inode(
            number,
            mode,
            uid | high_uid << 16,
            gid | high_gid << 16,
            size,
            links,
            modified,
            struct.unpack_from("<I", raw, 0x20)[0],
            raw[0x28:0x64],
        )

    def entries(self, directory: Inode) -> dict[str, int]:
        """See :meth:`.FileSystem.entries`."""
        if not directory.is_directory:
            return {}
        data = self.read(directory, MAX_DIRECTORY)
        names = {}
        for at in range(0, len(data), self._block):
            for number, name in self._records(data[at : at + self._block]):
                names[name] = number
        return names

    def _records(self, block: bytes) -> Iterator[tuple[int, str]]:
        at = 0
        while at + 8 <= len(block):
            number, length, name_length, kind = struct.unpack_from("<IHBB", block, at)
            if not self._has_kinds:
                name_length |= kind << 8
            name = block[at + 8 : at + 8 + name_length]
            # An entry without an inode is the checksum at a block's end, or was removed.
            if number and name not in (b".", b"..") and name and b"/" not in name:
                yield number, name.decode("utf-8", "surrogateescape")
            if length < 8:
                return
            at += length

    def read(self, inode: Inode, limit: int) -> bytes:
        """See :meth:`.FileSystem.read`."""
        if inode.flags & _INODE_ENCRYPTED:
            raise self._unreadable(f"inode {inode.number} is encrypted")
        size = min(inode.size, limit)
        data = bytearray(size)
        for run in self._runs(inode, -(-size // self._block)):
            at = run.logical * self._block
            if at >= size:
                continue
            length = min(run.count * self._block, size - at)
            part = self._disk.read(run.physical * self._block, length)
            data[at : at + len(part)] = part
        return bytes(data)

    def link(self, inode: Inode) -> str:
        """See :meth:`.FileSystem.link`."""
        if inode.size < 60 and not inode.flags & _INODE_EXTENTS:
            raw = inode.blocks[: inode.size]
        else:
            raw = self.read(inode, 4096)
        return raw.decode("utf-8", "surrogateescape")

    def _runs(self, inode: Inode, blocks: int) -> Iterator[_Extent]:
        """Yield the locations of the first blocks of a file; the blocks in between are zeros."""
        if not inode.flags & _INODE_EXTENTS:
            yield from self._mapped(inode.blocks, blocks)
            return
        end = 0
        for run in self._extents(inode, inode.blocks, _MAX_DEPTH, itertools.count()):
            if run.logical < end:
                raise self._unreadable(f"the extents of inode {inode.number} are damaged")
            end = run.logical + run.count
            yield run

    def _extents(
        self, inode: Inode, node: bytes, deepest: int, nodes: Iterator[int]
    ) -> Iterator[_Extent]:
        magic, count, _, depth = struct.unpack_from("<HHHH", node)
        sound = magic == _EXTENT_MAGIC and depth <= deepest and 12 + 12 * count <= len(node)
        if not sound or next(nodes) > MAX_NODES:
            raise self._unreadable(f"the extents of inode {inode.number} are damaged")
        for at in range(12, 12 + 12 * count, 12):
            if depth:
                _, low, high = struct.unpack_from("<IIH", node, at)
                child = self._read_block(low | high << 32)
                yield from self._extents(inode, child, depth - 1, nodes)
                continue
            logical, length, high, low = struct.unpack_from("<IHHI", node, at)
            # Longer ones are preallocated for the file, and read as zeros.
            if length <= 32768:
                yield _Extent(logical, length, low | high << 32)

    def _mapped(self, pointers: bytes, blocks: int) -> Iterator[_Extent]:
        """Yield blocks mapped as in ext2: 12 directly, the rest by up to three tables."""
        words = struct.unpack("<15I", pointers)
        for logical, physical in enumerate(words[:12]):
            if physical and logical < blocks:
                yield _Extent(logical, 1, physical)
        logical = 12
        for level, physical in enumerate(words[12:], 1):
            yield from self._table(physical, logical, level, blocks)
            logical += (self._block // 4) ** level

    def _table(self, table: int, logical: int, level: int, blocks: int) -> Iterator[_Extent]:
        if not table or logical >= blocks:
            return
        each = (self._block // 4) ** (level - 1)
        for physical in struct.unpack(f"<{self._block // 4}I", self._read_block(table)):
            if logical >= blocks:
                return
            if physical and level == 1:
                yield _Extent(logical, 1, physical)
            elif physical:
                yield from self._table(physical, logical, level - 1, blocks)
            logical += each

    def _read_block(self, number: int) -> bytes:
        return self._disk.read(number * self._block, self._block).ljust(self._block, b"\0")
