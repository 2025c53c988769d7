"""Header of a qcow2 file, read without following its references.

An image may come from a stranger, and its header may name any file of this host, or a server, as
its backing file; a guest booted from it could then read that (CVE-2022-47951, CVE-2024-32498). So
the names are read here, and refused, before QEMU opens the image.

Source of the format: ``docs/interop/qcow2.txt`` of QEMU.
"""

from __future__ import annotations

import re
import shlex
import struct
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hotplate.errors import ImageError
from hotplate.image import vmdk
from hotplate.text import shortened

#: The formats that machines use; others are to be converted first. None of them but qcow2 and VMDK
#: names other files: QEMU opens no VHDX or VDI with a parent.
FORMATS = ("qcow2", "raw", "vmdk", "vhdx", "vdi")

MAGIC = b"QFI\xfb"
SECTOR = 512

#: Magic bytes of other formats (the probe functions in QEMU's ``block/``).
OTHERS: tuple[tuple[bytes, str], ...] = (
    (b"KDMV", "vmdk"),
    (b"COWD", "vmdk"),
    (b"# Disk DescriptorFile", "vmdk"),
    (b"vhdxfile", "vhdx"),
    (bytes.fromhex("636f6e6563746978"), "vpc"),
    (b"QED\0", "qed"),
    (b"LUKS\xba\xbe", "luks"),
    (b"WithoutFreeSpace", "parallels"),
    (b"WithouFreSpacExt", "parallels"),
    (b"Bochs Virtual HD Image", "bochs"),
    (b"#!/bin/sh\n#V2.0 Format\n", "cloop"),
    (b"<<< ", "vdi"),
)

#: Incompatible features.
DIRTY, CORRUPT, DATA_FILE, _COMPRESSION, EXTENDED_L2 = (1 << bit for bit in range(5))

BACKING_FORMAT = 0xE2792ACA
#: Header extensions.
DATA_FILE_NAME = 0x44415441

#: Limit of the backing files in a chain.
MAX_CHAIN = 8

#: Bits of an entry of the L1 table, and of most of an L2 table, that hold the offset.
OFFSET = 0x00FFFFFFFFFFFE00

#: Limit of the bytes of L2 tables to read: those of 8 TiB of data in clusters of 64 KiB.
MAX_TABLES = 1 << 30

# QEMU's syntax of a protocol name: path_has_protocol() in its block.c.
_PROTOCOL = re.compile(r"[^/:]*:")


@dataclass(frozen=True)
class Header:
    """The header of a qcow2 file.

    :param virtual_size: bytes of the virtual disk.
    :param backing: the name of its backing file, "" for none.
    :param backing_format: the format of that, "" when the header has none.
    :param data_file: the name of its external data file, "" for none.
    :param encrypted: its data can be read with a key only.
    """

    virtual_size: int
    cluster_bits: int
    l1_entries: int
    l1_offset: int
    incompatible: int
    backing: str
    backing_format: str
    data_file: str
    encrypted: bool


@dataclass(frozen=True)
class Link:
    """One file of a chain.

    :param path: the file, absolute.
    :param format: one of :data:`FORMATS`.
    """

    path: Path
    format: str


def format_of(file: Path) -> str:
    """Return the format of an image file by its first bytes; unknown ones are ``raw``."""
    with file.open("rb") as stream:
        head = stream.read(64)
    if head.startswith(MAGIC):
        return "qcow2"
    return next((name for magic, name in OTHERS if head.startswith(magic)), "raw")


def read_header(file: Path) -> Header:
    """Read the header of a qcow2 file.

    :raises ImageError: when it is damaged, or of version 1.
    """
    with file.open("rb") as stream:
        head = stream.read(1 << 16)
    try:
        return _header(head)
    except UnicodeDecodeError as error:
        raise ImageError(
            f'the image "{file}" names another file, {shortened(repr(error.object), 200)}; '
            "expected UTF-8",
            hint=f"if you trust the image: {_convert(file)}",
        ) from None
    except (struct.error, ValueError) as error:
        raise ImageError(
            f'the image "{file}" has a damaged qcow2 header: {error}', hint="build it again"
        ) from None


def _header(head: bytes) -> Header:
    magic, version, backing_at, backing_length, cluster_bits, size = struct.unpack_from(
        ">4sIQIIQ", head
    )
    encryption, l1_entries, l1_offset = struct.unpack_from(">IIQ", head, 32)
    if magic != MAGIC or version not in (2, 3):
        raise ValueError(f"version {version}; expected 2 or 3")
    if not 9 <= cluster_bits <= 21:
        raise ValueError(f"clusters of 2^{cluster_bits} bytes")
    if l1_entries > 32 * 1024 * 1024 // 8:
        raise ValueError(f"a table of {l1_entries} entries")
    incompatible, length = 0, 72
    if version == 3:
        incompatible, length = struct.unpack_from(">Q", head, 72)[0], _word(head, 100)
    extensions = _extensions(head, length, backing_at)
    backing = ""
    if backing_at:
        if not 0 < backing_length <= 1023 or backing_at + backing_length > len(head):
            raise ValueError(f"a backing name of {backing_length} bytes")
        backing = head[backing_at : backing_at + backing_length].decode()
    data_file = ""
    if incompatible & DATA_FILE:
        data_file = extensions.get(DATA_FILE_NAME, b"").decode() or "a name that is not given"
    return Header(
        virtual_size=size,
        cluster_bits=cluster_bits,
        l1_entries=l1_entries,
        l1_offset=l1_offset,
        incompatible=incompatible,
        backing=backing,
        backing_format=extensions.get(BACKING_FORMAT, b"").decode(),
        data_file=data_file,
        encrypted=encryption != 0,
    )


def _word(head: bytes, at: int) -> int:
    value: int = struct.unpack_from(">I", head, at)[0]
    return value


def _extensions(head: bytes, at: int, end: int) -> dict[int, bytes]:
    """Return the header's extensions, up to one of type 0 or to the backing name."""
    extensions: dict[int, bytes] = {}
    while at + 8 <= min(end or len(head), len(head)):
        kind, length = _word(head, at), _word(head, at + 4)
        if kind == 0:
            break
        if at + 8 + length > len(head):
            raise ValueError(f"an extension of {length} bytes")
        extensions[kind] = head[at + 8 : at + 8 + length]
        at += 8 + (length + 7) // 8 * 8
    return extensions


def chain(file: Path, *, allow_backing: bool = False) -> tuple[Link, ...]:
    """Return the image and then its backing files, each checked before anything opens it.

    :param file: in one of :data:`FORMATS`, absolute.
    :param allow_backing: also follow names of files outside of the image's directory.
    :raises ImageError: for a name that is refused; the text has the name and the fix.
    """
    links: list[Link] = []
    here, kind = file, ""
    while True:
        if len(links) > MAX_CHAIN:
            raise ImageError(f'more than {MAX_CHAIN} files lie behind the image "{file}"')
        links.append(Link(here, kind or format_of(here)))
        if links[-1].format == "vmdk" and (fault := vmdk.fault(here)):
            raise ImageError(
                f'the image "{here}" {fault}; expected one file: {" or ".join(vmdk.CREATE_TYPES)}',
                hint=_convert(here),
            )
        if links[-1].format != "qcow2":
            return tuple(links)
        header = read_header(here)
        if header.data_file:
            raise ImageError(
                f'the image "{here}" has its data in another file, "{header.data_file}", which is '
                "not supported",
                hint=_convert(here),
            )
        if header.encrypted:
            raise ImageError(
                f'the image "{here}" is encrypted, and its key is not known here',
                hint=decrypt(here, "qcow2", here.with_name(f"{here.stem}-alone.qcow2")),
            )
        if not header.backing:
            return tuple(links)
        behind = _behind(here, header.backing, file.parent, allow_backing=allow_backing)
        kind = _backing_format(here, behind, header.backing_format)
        here = behind


def _behind(file: Path, name: str, directory: Path, *, allow_backing: bool) -> Path:
    """Return the file named by a header; only its directory entry is read."""
    if _PROTOCOL.match(name) or "\0" in name:
        raise ImageError(
            f'the image "{file}" names "{name}" as its backing file; expected a file, neither '
            "a protocol nor a JSON description",
            hint=_convert(file),
        )
    path = (file.parent / name).resolve()
    if path.parent != directory and not allow_backing:
        raise ImageError(
            f'the image "{file}" needs the backing file "{name}", which is outside its '
            "directory; the guest could read whatever is in it",
            hint=f"if you trust the image: --allow-backing; else: {_convert(file)}",
        )
    if not path.exists():
        raise ImageError(
            f'the image "{file}" needs the backing file "{name}", which is not there',
            hint="put it there, or make the image stand alone where it is: qemu-img convert",
        )
    if not path.is_file():
        raise ImageError(
            f'the image "{file}" names "{name}" as its backing file; expected a regular file'
        )
    return path


def _backing_format(file: Path, behind: Path, named: str) -> str:
    kind = named or format_of(behind)
    if kind not in FORMATS:
        raise ImageError(
            f'the image "{file}" needs the backing file "{behind}" in the format "{kind}"; '
            f"expected {' or '.join(FORMATS)}",
            hint=_convert(file),
        )
    return kind


def decrypt(file: Path, kind: str, target: Path) -> str:
    """Return the command that copies an encrypted image without its encryption.

    :param kind: ``qcow2`` or ``luks``.
    """
    key = "encrypt.key-secret" if kind == "qcow2" else "key-secret"
    # A comma separates options, and is doubled in a name.
    name = str(file).replace(",", ",,")
    source = ["--image-opts", f"driver={kind},{key}=key,file.filename={name}"]
    secret = ["--object", "secret,id=key,file=KEY"]
    return shlex.join(["qemu-img", "convert", *secret, *source, "-O", "qcow2", str(target)])


def _convert(file: Path) -> str:
    target = file.with_name(f"{file.stem}-alone.qcow2")
    return shlex.join(["qemu-img", "convert", "-O", "qcow2", str(file), str(target)])


def required_length(file: Path, header: Header) -> int:
    """Return the minimum length of a qcow2 file, by the tables that it points to.

    Reads the entries of the L1 table that the disk needs, and each L2 table once; further entries
    belong to saved machines, or to a disk that was larger. ``qemu-img check`` finds the same, but
    its time grows with the size of the image.

    :raises ImageError: for more tables than :data:`MAX_TABLES` bytes.
    """
    cluster = 1 << header.cluster_bits
    entry = 16 if header.incompatible & EXTENDED_L2 else 8
    # An L2 table is a cluster of entries, each for one cluster of the disk.
    needed = -(-header.virtual_size // (cluster // entry * cluster))
    entries = min(header.l1_entries, needed)
    end: int = header.l1_offset + header.l1_entries * 8
    length = file.stat().st_size
    if end > length:
        return end
    with file.open("rb") as image:
        image.seek(header.l1_offset)
        pointers = _words(image.read(entries * 8))
        # In a damaged file millions of entries may point to one table, and a sparse file of some
        # kB has room for any number of tables.
        offsets = {pointer & OFFSET for pointer in pointers} - {0}
        end = max(end, max(offsets, default=0) + cluster)
        if len(offsets) * cluster > MAX_TABLES:
            raise ImageError(
                f'"{file}" has {len(offsets)} L2 tables of {cluster} bytes; expected at most '
                f"{MAX_TABLES >> 20} MiB of them",
                hint=_convert(file),
            )
        for offset in sorted(offsets):
            if offset + cluster <= length:
                image.seek(offset)
                table = image.read(cluster)
                if table.count(0) < len(table):
                    end = max(end, _end_of_data(_words(table)[:: entry // 8], header.cluster_bits))
    return end


def _words(data: bytes) -> array[int]:
    """Return a table as 64-bit numbers; a truncated file has fewer."""
    words = array("Q", data[: len(data) // 8 * 8])
    if sys.byteorder == "little":
        words.byteswap()
    return words


def _end_of_data(descriptors: Iterable[int], cluster_bits: int) -> int:
    """Return the end of the last cluster that an L2 table points to."""
    end = 0
    # The descriptor of a compressed cluster has the offset and the number of sectors.
    offset_bits = 62 - (cluster_bits - 8)
    for descriptor in descriptors:
        if descriptor & (1 << 62):
            # At the end of the file, the last sector may be shorter.
            start = descriptor & ((1 << offset_bits) - 1)
            sectors = (descriptor & ((1 << 62) - 1)) >> offset_bits
            end = max(end, start // SECTOR * SECTOR + sectors * SECTOR + 1)
        elif data := descriptor & OFFSET:
            # QEMU lets the last cluster end with the file.
            end = max(end, data + 1)
    return end
