"""The level of instructions that an image needs of its CPU, as far as its files tell."""

from __future__ import annotations

import contextlib
import functools
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hotplate.errors import HotplateError
from hotplate.image import manifest
from hotplate.image.inspect import Image
from hotplate.inspection.contents import Contents
from hotplate.inspection.inspection import inspected
from hotplate.inspection.tree import Tree


@dataclass(frozen=True)
class Release:
    """A row of :data:`RELEASES`: distributions that are compiled for more than the lowest level.

    :param ids: by ``ID`` of os-release(5).
    :param since: the first major version, of ``VERSION_ID``.
    :param level: by the psABI's name.
    :param reason: worded to follow "because".
    """

    ids: tuple[str, ...]
    since: int
    level: str
    reason: str


_EL = ("rhel", "centos", "rocky", "almalinux", "ol")
#: The newest first. Not in it: distributions with libraries for higher levels beside those for the
#: lowest (glibc-hwcaps, as openSUSE Tumbleweed), as these run on any CPU.
RELEASES = (
    Release(_EL, 10, "x86-64-v3", "Enterprise Linux 10 is compiled for x86-64-v3"),
    Release(_EL, 9, "x86-64-v2", "Enterprise Linux 9 is compiled for x86-64-v2"),
    Release(
        ("sles", "sles_sap", "opensuse-leap"),
        16,
        "x86-64-v2",
        "SUSE Linux 16 is compiled for x86-64-v2",
    ),
)

#: The programs without which nothing runs. The C library of a distribution that is compiled for a
#: level has the note; that of AlmaLinux 10's builds for x86-64-v2 tells these from the others.
PROGRAMS = (
    *(f"{folder}/libc.so.6" for folder in ("/lib64", "/usr/lib64", "/lib/x86_64-linux-gnu")),
    "/usr/lib/libc.so.6",
    "/lib64/ld-linux-x86-64.so.2",
    "/sbin/init",
)

#: Bytes of a program that are read: its headers and notes stand at its beginning.
HEAD = 64 << 10

# ELF-64 (elf(5)), little-endian, for EM_X86_64; the segment of the note, and the note's type.
_ELF = b"\x7fELF\x02\x01"
_X86_64 = 62
_PT_GNU_PROPERTY = 0x6474E553
_NT_GNU_PROPERTY_TYPE_0 = 5
# The x86-64 psABI, "Program Property": a bit for each level, the lowest first.
_ISA_1_NEEDED = 0xC0008002
_ISA_LEVELS = 0xF


@dataclass(frozen=True)
class CpuNeed:
    """The level that an image needs.

    :param level: by the psABI's name; "" when nothing says that it needs more than the lowest.
    :param reason: a sentence on the source, worded to follow "because".
    """

    level: str
    reason: str


def cpu_need(
    image: Image, *, allow_backing: bool = False, checksums: Path | None = None
) -> CpuNeed:
    """Return the level that an image needs, by its manifest, its programs and its release.

    An image that cannot be read needs no more than the lowest level, as far as is known here.

    :param allow_backing: see :func:`~hotplate.inspection.inspection.inspected`.
    :param checksums: see :func:`~hotplate.image.checksum.sha256_of`.
    """
    if release := manifest.read(image.path).get("release"):
        # Built by hotplate, from packages of Debian or Ubuntu for amd64.
        return CpuNeed("", f'its manifest names the release "{release}"')
    if image.arch != "x86_64":
        return CpuNeed("", f"no level is known of {image.arch}")
    stat = image.path.stat()
    return _read(image.path, (stat.st_ino, stat.st_mtime_ns), allow_backing, checksums)


@functools.lru_cache(maxsize=100)
def _read(
    path: Path,
    stamp: tuple[int, ...],  # noqa: ARG001 - an image that was built again is read again
    allow_backing: bool,
    checksums: Path | None,
) -> CpuNeed:
    with (
        contextlib.suppress(HotplateError),
        inspected(path, allow_backing=allow_backing, checksums=checksums) as inspection,
    ):
        if inspection.contents is not None:
            return need_of(inspection.contents)
    return CpuNeed("", "its files cannot be read here")


def need_of(contents: Contents) -> CpuNeed:
    """Return the level that the contents of an image need."""
    levels = {path: isa_needed(contents.tree, path) for path in PROGRAMS}
    path = max(levels, key=lambda each: levels[each])
    if levels[path] > 1:
        # There is no AVX-512 in QEMU: for x86-64-v4 it is the most that it emulates.
        level = f"x86-64-v{min(levels[path], 3)}"
        return CpuNeed(level, f'"{path}" is marked as needing x86-64-v{levels[path]}')
    return _by_release(contents.release)


def _by_release(release: Mapping[str, str]) -> CpuNeed:
    major = re.match(r"\d{1,9}", release.get("VERSION_ID", ""))
    for row in RELEASES:
        if release.get("ID") in row.ids and major and int(major[0]) >= row.since:
            return CpuNeed(row.level, row.reason)
    return CpuNeed("", "nothing in it says that it needs more")


def isa_needed(tree: Tree, path: str) -> int:
    """Return the level in the ``.note.gnu.property`` of a program, from 1 on; 0 without one."""
    head = tree.read(path, HEAD)
    # A damaged header points anywhere, also to offsets that C has no type for.
    with contextlib.suppress(struct.error, OverflowError):
        if head.startswith(_ELF) and struct.unpack_from("<H", head, 18)[0] == _X86_64:
            (at,) = struct.unpack_from("<Q", head, 32)
            size, count = struct.unpack_from("<HH", head, 54)
            for number in range(count):
                kind, _, offset, _, _, length = struct.unpack_from(
                    "<IIQQQQ", head, at + number * size
                )
                if kind == _PT_GNU_PROPERTY:
                    return _level_in(head[offset : offset + length])
    return 0


def _level_in(note: bytes) -> int:
    """Return the level in a note, 0 when it has none."""
    name_size, size, kind = struct.unpack_from("<III", note)
    if kind != _NT_GNU_PROPERTY_TYPE_0 or note[12 : 12 + name_size] != b"GNU\0":
        return 0
    at, end = 16, min(16 + size, len(note))
    while at < end:
        property_kind, length = struct.unpack_from("<II", note, at)
        if property_kind == _ISA_1_NEEDED:
            (levels,) = struct.unpack_from("<I", note, at + 8)
            return int(levels & _ISA_LEVELS).bit_length()
        # Each is padded to eight bytes.
        at += 8 + (length + 7) // 8 * 8
    return 0
