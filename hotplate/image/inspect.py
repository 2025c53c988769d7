"""Properties of an image, from its first sectors and ``qemu-img``, without mounting it."""

from __future__ import annotations

import json
import os
import re
import shlex
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hotplate.errors import ImageError, UsageError
from hotplate.image import manifest, overlay, qcow2
from hotplate.image.checksum import sha256_of
from hotplate.image.plan import Layout
from hotplate.image.qcow2 import FORMATS
from hotplate.text import quoted

KERNEL = ("vmlinuz", "kernel")
#: The suffixes of a partition image's kernel and initrd: diskimage-builder's, then others'.
INITRD = ("initrd", "initramfs")

SECTOR = 512
#: Bytes of a partition table: protective MBR, GPT header, its entries.
HEAD = 34 * SECTOR

#: Offset of the bytes 53 ef in ext2, ext3 and ext4 (the superblock's ``s_magic``).
EXT_MAGIC_AT = 1024 + 56

#: Offset and magic bytes of the file systems that a partition image may have in ``HEAD``.
FILE_SYSTEMS = ((EXT_MAGIC_AT, b"\x53\xef"), (0, b"XFSB"))

#: A GPT partition type as it is on the disk (UEFI specification, 5.3.3).
ESP = bytes.fromhex("28732ac11ff8d211ba4b00a0c93ec93b")

#: Processors by the PE header of a kernel that EFI can start (PE format, 3.3.1).
PE_MACHINES = {0x8664: "x86_64", 0xAA64: "aarch64"}

#: Debian's and a manifest's name of an architecture -> QEMU's.
DEBIAN = {"amd64": "x86_64", "arm64": "aarch64"}

DEFAULT_ARCH = "x86_64"


@dataclass(frozen=True)
class Table:
    """A partition table, as far as it matters for starting from it.

    :param kind: ``mbr`` or ``gpt``.
    :param bios: there is boot code in the first sector.
    :param uefi: there is an EFI system partition.
    """

    kind: str
    bios: bool
    uefi: bool


@dataclass(frozen=True)
class ImageFile:
    """The file of an image, with any contents.

    :param path: absolute.
    :param format: one of :data:`~hotplate.image.qcow2.FORMATS`.
    :param virtual_size: bytes of the disk as seen by a guest.
    :param chain: the file and its backing files, the file first.
    """

    path: Path
    format: str
    virtual_size: int
    chain: tuple[qcow2.Link, ...] = field(default=(), kw_only=True)

    @classmethod
    def open(cls, path: Path | str, *, allow_backing: bool = False) -> ImageFile:
        """Open an image file, and check its format and its references.

        :param path: the file, or its name without the suffix.
        :param allow_backing: follow the names of backing files out of the image's directory.
        :raises UsageError: there is no such file, or it is of another format.
        :raises ImageError: it is empty, truncated, or refers to a file that is refused.
        """
        file = find(Path(path))
        if file.stat().st_size == 0:
            raise ImageError(f'the image "{path}" is empty')
        kind = qcow2.format_of(file)
        if kind not in FORMATS:
            raise UsageError(
                f'"{file}" is an image in the format "{kind}"; expected {" or ".join(FORMATS)}',
                hint=_convert(file, kind),
            )
        # Check first: until then nothing may open a file that the image refers to.
        links = qcow2.chain(file, allow_backing=allow_backing)
        if kind == "raw":
            return cls(file, kind, file.stat().st_size, chain=links)
        if kind != "qcow2":
            size = _virtual_size(file, kind)
            _check_other_length(file, kind)
            return cls(file, kind, size, chain=links)
        _check_length(file)
        return cls(file, kind, qcow2.read_header(file).virtual_size, chain=links)


@dataclass(frozen=True)
class Image(ImageFile):
    """An image that can be booted.

    :param layout: a whole disk, or one file system with kernel and initrd beside it.
    :param table: the partition table of a whole disk.
    :param kernel: of a partition image, else None.
    :param initrd: of a partition image, else None.
    :param arch: the processor, in QEMU's spelling: by the kernel, or by the manifest that
        ``hotplate build`` leaves; ``x86_64`` when neither has it.
    """

    layout: Layout
    table: Table | None = None
    kernel: Path | None = None
    initrd: Path | None = None
    arch: str = DEFAULT_ARCH

    def __str__(self) -> str:
        return self.path.name

    @property
    def bios_bootable(self) -> bool:
        """Return whether a BIOS can start it, from boot code or with its kernel."""
        return self.table is None or self.table.bios

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        allow_backing: bool = False,
        checksums: Path | None = None,
        boots: bool = True,
    ) -> Image:
        """Open an image file, and check that it can be booted.

        :param path: the file, or its name without the suffix.
        :param allow_backing: follow the names of backing files, and links to a kernel and an
            initrd, out of the image's directory.
        :param checksums: see :func:`~hotplate.image.checksum.sha256_of`.
        :param boots: a virtual machine boots it; a container needs neither boot loader nor kernel.
        :raises UsageError: there is no such file, or it is of another format.
        :raises ImageError: it cannot be booted; the text has the reason.
        :raises HostError: ``qemu-img`` is missing.

        Example::

            image = Image.open("bookworm-disk.qcow2")
            disk = image.overlay(directory)
        """
        opened = ImageFile.open(path, allow_backing=allow_backing)
        file = opened.path
        head = _head(file, opened.format)
        check_end(file, head, opened.virtual_size)
        table = read_table(head)
        if table is not None:
            arch = _arch(file, None)
            image = cls(**vars(opened), layout=Layout.DISK, table=table, arch=arch)
            if boots:
                image.check_boots()
            return image
        if not is_file_system(head):
            raise ImageError(
                f'"{file}" is not an image: it has neither a partition table nor a file system '
                "that is known",
                hint=f"look at it with: file {shlex.quote(str(file))}",
            )
        kernel = _beside(file, KERNEL, "kernel", allow_backing=allow_backing)
        initrd = _beside(file, INITRD, "initrd", allow_backing=allow_backing)
        image = cls(
            **vars(opened),
            layout=Layout.PARTITION,
            kernel=kernel,
            initrd=initrd,
            arch=_arch(file, kernel),
        )
        if boots:
            image.check_boots()
        beside = {"vmlinuz": kernel, "initrd": initrd}
        found = {suffix: each for suffix, each in beside.items() if each is not None}
        manifest.check_set(file, found, checksums=checksums)
        return image

    def check_boots(self) -> None:
        """Refuse an image that no virtual machine boots.

        :raises ImageError: it has no boot loader, or, as one file system, no kernel beside it.
        """
        if self.table is not None:
            if not self.table.bios and not self.table.uefi:
                raise ImageError(
                    f'"{self.path}" has a partition table but nothing that boots: neither boot '
                    "code for a BIOS nor an EFI system partition",
                    hint="add a boot loader; with diskimage-builder that is the element vm",
                )
            return
        name = manifest.stem_of(self.path).name
        for what, found, suffixes in (
            ("kernel", self.kernel, KERNEL),
            ("initrd", self.initrd, INITRD),
        ):
            if found is None:
                expected = " or ".join(f'"{name}.{suffix}"' for suffix in suffixes)
                raise ImageError(
                    f'"{self.path}" is one file system without a boot loader, and no {what} lies '
                    f"beside it; expected {expected}",
                    hint="with diskimage-builder that is the element baremetal, or vm for a whole "
                    "disk",
                )

    def sha256(self, cache: Path | None = None) -> str:
        """Return the SHA-256 of the image file, in hexadecimal.

        :param cache: a directory for the result, which is valid while the file's device, inode,
            size and time of change stay the same.
        """
        return sha256_of(self.path, cache)

    def fingerprint(self, cache: Path | None = None) -> dict[str, str]:
        """Return the SHA-256 of every file that a guest boots from, by role.

        :param cache: see :func:`~hotplate.image.checksum.sha256_of`.
        """
        # Read the chain again, without a check: the names were checked when the image was opened.
        links = qcow2.chain(self.path, allow_backing=True)
        files = {"image": self.path}
        files |= {f"backing {depth}": link.path for depth, link in enumerate(links[1:], 1)}
        if self.kernel is not None:
            files["kernel"] = self.kernel
        if self.initrd is not None:
            files["initrd"] = self.initrd
        return {what: sha256_of(path, cache) for what, path in files.items()}

    def overlay(self, directory: Path, *, gib: int = 0) -> Path:
        """Return a writable disk backed by the image; the image itself is never written.

        :param directory: the directory of the overlay.
        :param gib: its size in GiB; 0 for that of the image.
        :raises HostError: there is no space, or the directory cannot be written to.
        """
        return overlay.make_overlay(self.path, self.format, directory / "disk.qcow2", gib=gib)


def find(path: Path) -> Path:
    """Return the absolute path of an image file; the suffix may have been left out.

    :raises UsageError: when there is none, or it cannot be read.
    """
    candidates = [path]
    if path.name:
        candidates += [path.with_name(f"{path.name}.{suffix}") for suffix in FORMATS]
    for candidate in candidates:
        if candidate.is_file():
            file = candidate.resolve()
            break
    else:
        if path.is_dir():
            raise UsageError(f'"{path}" is a directory, not an image file')
        # A Path has one slash where the URL has two.
        if match := re.match(r"([a-z][a-z0-9+.-]*:)/(?=[^/])", str(path)):
            raise UsageError(
                f'"{match[1]}//{str(path)[match.end() :]}" is a URL, and only "hotplate test" '
                "fetches images",
                hint="fetch it first, for example with curl -O",
            )
        raise UsageError(
            f'there is no image "{path}"',
            hint=f"name a file that is there: ls {quoted(path.parent)}; or build "
            f"one: hotplate build -o {quoted(path)}",
        )
    if not os.access(file, os.R_OK):
        raise UsageError(f'the image "{path}" cannot be read', hint=f"ls -l {quoted(path)}")
    return file


def _convert(file: Path, kind: str) -> str:
    """Return the command that converts an image of another format."""
    target, move = file.with_suffix(".qcow2"), ""
    if file == target:
        # QEMU does not convert a file onto itself.
        file = file.with_suffix(f".{kind}")
        move = f"{shlex.join(['mv', '-i', str(target), str(file)])} && "
    command = shlex.join(["qemu-img", "convert", "-O", "qcow2", str(file), str(target)])
    if kind == "luks":
        command = qcow2.decrypt(file, kind, target)
    beside = " and ".join(f"{file.stem}.{suffixes[0]}" for suffixes in (KERNEL, INITRD))
    advice = f"if it is a partition image, copy {beside} to the same place"
    return f"{move}{command}  # {advice}"


def _check_length(file: Path) -> None:
    needed = qcow2.required_length(file, qcow2.read_header(file))
    if file.stat().st_size < needed:
        raise _truncated(file, f"refers to data up to {needed}")


def _check_other_length(file: Path, kind: str) -> None:
    """Check that a VMDK or VDI file has all that its tables point to; QEMU checks VHDX itself."""
    if kind == "vmdk":
        done = overlay.qemu_img("check", "-U", "-f", kind, str(file))
        if b"points after EOF" in done.stderr:
            raise _truncated(file, "refers to data behind its end")
    elif kind == "vdi":
        # VdiHeader of QEMU's block/vdi.c.
        with file.open("rb") as stream:
            header = stream.read(SECTOR).ljust(SECTOR, b"\0")
        (data_at,) = struct.unpack_from("<I", header, 0x158)
        block, _, _, blocks = struct.unpack_from("<4I", header, 0x178)
        if data_at + block * blocks > file.stat().st_size:
            raise _truncated(file, f"refers to data up to {data_at + block * blocks}")


def check_end(file: Path, head: bytes, size: int) -> None:
    """Check that a disk does not end before its partitions or its file system.

    :param head: its first sectors.
    :param size: its bytes, as seen by a guest.
    :raises ImageError: it does, as one that was cut or shrunk.
    """
    what, end = _end(head.ljust(HEAD, b"\0"))
    if end > size:
        raise ImageError(
            f'"{file}" is truncated: the disk has {size} bytes, and {what} ends at {end}',
            hint="copy or build it again",
        )


def _end(head: bytes) -> tuple[str, int]:
    """Return what reaches farthest on a disk and its end, as its first sectors tell."""
    table = read_table(head)
    if table is not None:
        ends = (_gpt_ends if table.kind == "gpt" else _mbr_ends)(head)
        end, number = max(((last, number) for number, last in ends), default=(0, 0))
        return f"partition {number}", end * SECTOR
    if head[EXT_MAGIC_AT:].startswith(b"\x53\xef"):
        low, log_size, wide, high = (
            struct.unpack_from("<I", head, 1024 + at)[0] for at in (0x4, 0x18, 0x60, 0x150)
        )
        # INCOMPAT_64BIT; no block is larger than 64 KiB.
        blocks = low + ((high << 32) if wide & 0x80 else 0)
        return "the file system", blocks * (1024 << min(log_size, 6))
    if head.startswith(b"XFSB"):
        block, blocks = struct.unpack_from(">IQ", head, 4)
        return "the file system", block * blocks
    return "", 0


def _gpt_ends(head: bytes) -> Iterator[tuple[int, int]]:
    """Yield the number of each partition and the first sector behind it."""
    size = struct.unpack_from("<I", head, SECTOR + 84)[0] or 128
    for number, at in enumerate(range(2 * SECTOR, HEAD - 47, size), 1):
        first, last = struct.unpack_from("<QQ", head, at + 32)
        if any(head[at : at + 16]) and last >= first:
            yield number, last + 1


def _mbr_ends(head: bytes) -> Iterator[tuple[int, int]]:
    for number, at in enumerate(range(446, 510, 16), 1):
        first, count = struct.unpack_from("<II", head, at + 8)
        # 0xEE stands for a GPT, and for all of the largest disk.
        if head[at + 4] not in (0, 0xEE):
            yield number, first + count


def _truncated(file: Path, why: str) -> ImageError:
    return ImageError(
        f'"{file}" is truncated: it has {file.stat().st_size} bytes and {why}',
        hint="copy or build it again",
    )


def _virtual_size(file: Path, kind: str) -> int:
    """Return the bytes of the disk of an image, as QEMU reads them in a format that is named."""
    done = overlay.qemu_img("info", "-U", "--output", "json", "-f", kind, str(file))
    if done.returncode != 0:
        raise _unreadable(file, done)
    size: int = json.loads(done.stdout)["virtual-size"]
    return size


def _unreadable(file: Path, done: subprocess.CompletedProcess[bytes]) -> ImageError:
    return ImageError(
        f'"{file}" cannot be read: {overlay.last_words(done)}',
        hint=f"qemu-img check {shlex.quote(str(file))}",
    )


def _head(file: Path, kind: str) -> bytes:
    """Return the first sectors of the disk, as seen by the guest."""
    if kind == "raw":
        with file.open("rb") as image:
            return image.read(HEAD)
    # A file of which qemu-img can set the length, in memory: a full disk is no fault of the image.
    with os.fdopen(os.memfd_create("head"), "rb") as head:
        done = overlay.qemu_img(
            *("dd", "-U", "-f", kind, "-O", "raw", f"bs={HEAD}", "count=1"),
            *(f"if={file}", f"of=/proc/self/fd/{head.fileno()}"),
            pass_fds=[head.fileno()],
        )
        if done.returncode != 0:
            raise _unreadable(file, done)
        return head.read()


def read_table(head: bytes) -> Table | None:
    """Return the partition table in the first sectors of a disk, or None when there is none.

    A file system on a whole disk may also have 55 aa at the end of its first sector, so an MBR
    must have a sound partition.
    """
    head = head.ljust(HEAD, b"\0")
    code = any(head[:440])
    if head[SECTOR : SECTOR + 8] == b"EFI PART":
        size = struct.unpack("<I", head[SECTOR + 84 : SECTOR + 88])[0] or 128
        entries = [head[at : at + 16] for at in range(2 * SECTOR, HEAD, size)]
        return Table("gpt", bios=code, uefi=ESP in entries)
    if head[510:512] != b"\x55\xaa" or is_file_system(head):
        return None
    partitions = [head[at : at + 16] for at in range(446, 510, 16)]
    used = [entry for entry in partitions if entry[4] != 0 and entry[12:16] != bytes(4)]
    if not used or any(entry[0] not in (0, 0x80) for entry in used):
        return None
    return Table("mbr", bios=code, uefi=any(entry[4] == 0xEF for entry in used))


def is_file_system(head: bytes) -> bool:
    """Return whether a known file system begins at the very start of the disk."""
    return any(head[at : at + len(magic)] == magic for at, magic in FILE_SYSTEMS)


def kernel_arch(kernel: Path) -> str | None:
    """Return the processor of a kernel, or None when its head does not tell."""
    with kernel.open("rb") as stream:
        head = stream.read(4096)
    if head[:2] != b"MZ" or len(head) < 64:
        return None
    at = struct.unpack("<I", head[60:64])[0]
    if head[at : at + 4] != b"PE\0\0":
        return None
    return PE_MACHINES.get(struct.unpack("<H", head[at + 4 : at + 6])[0])


def _arch(file: Path, kernel: Path | None) -> str:
    if kernel is not None and (arch := kernel_arch(kernel)):
        return arch
    return DEBIAN.get(str(manifest.read(file).get("arch")), DEFAULT_ARCH)


def _beside(
    file: Path, suffixes: tuple[str, ...], what: str, *, allow_backing: bool
) -> Path | None:
    name = manifest.stem_of(file)
    for suffix in suffixes:
        candidate = name.with_name(f"{name.name}.{suffix}")
        if candidate.is_file() and candidate.stat().st_size:
            # The guest can read all of it.
            if candidate.resolve().parent != file.parent and not allow_backing:
                raise ImageError(
                    f'the {what} "{candidate}" is a link to "{candidate.resolve()}", outside of '
                    "the image's directory",
                    hint="copy the file there, or, if you trust the image: --allow-backing",
                )
            return candidate
    return None
