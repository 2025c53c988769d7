"""Inspection of one image, from outside and inside."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

from hotplate.errors import ImageError
from hotplate.image import manifest
from hotplate.image.checksum import sha256_of
from hotplate.image.inspect import HEAD, INITRD, KERNEL, ImageFile, Table, check_end, read_table
from hotplate.inspection.contents import Contents
from hotplate.inspection.disk import Disk, open_disk
from hotplate.inspection.ext4 import NotReadHere
from hotplate.inspection.findings import ImageFault, fails, findings
from hotplate.inspection.mounted import KINDS, Mounts
from hotplate.inspection.partitions import Partition, partitions
from hotplate.inspection.standard import deviations
from hotplate.inspection.system import System, put_together
from hotplate.inspection.tree import MAX_TEXT, Tree

#: The manifest that the element heat-config leaves in an image.
IN_IMAGE = "/usr/share/heat-config/manifest.json"
#: The kinds of the faults that stop a virtual machine and not a container, where systemd mounts no
#: devices of fstab (systemd-fstab-generator(8)).
BOOT_KINDS = frozenset({"fstab", "no-boot-loader", "no-kernel", "no-kernel-beside"})


class Manifest(StrEnum):
    """Relation of ``NAME.manifest.json`` to an image."""

    FITS = "fits"
    OTHER = "is of another file, and not used"
    UNREADABLE = "has a format that this hotplate does not read, and is not used"
    NONE = "none"


@dataclass(frozen=True)
class Inspection:
    """Properties of an image and its faults.

    :param contents: of its root file system, readable while the image is open; None when it cannot
        be read at all.
    :param error: the reason for that, whose outcome tells whether the image is at fault.
    :param missing: a sentence for each further file system that a guest mounts, and is not read.
    :param elements: the diskimage-builder elements of the image, as far as recorded.
    :param efi: the files of the EFI system partition, when there is a readable one.
    """

    file: ImageFile
    table: Table | None
    partitions: tuple[Partition, ...]
    root: Partition | None
    contents: Contents | None
    error: ImageError | None
    manifest: Manifest
    built: Mapping[str, Any] = field(default_factory=dict)
    elements: tuple[str, ...] = ()
    findings: tuple[ImageFault, ...] = ()
    efi: Tree | None = None
    missing: tuple[str, ...] = ()

    @property
    def unread(self) -> str:
        """Return why the root file system was not read, "" when it was."""
        return self.error.message if self.error else ""

    @property
    def efi_files(self) -> list[str]:
        """Return the paths of the files of the EFI system partition; none when it is damaged."""
        with contextlib.suppress(ImageError):
            found = self.efi.walk() if self.efi else ()
            return sorted(path for path, inode in found if inode.is_file)
        return []

    @property
    def boot_loaders(self) -> list[str]:
        """Return the configured boot loaders, in the root file system or for UEFI."""
        names = [path.lower() for path in self.efi_files]
        systemd = any(path == "/loader/loader.conf" or "/systemd-boot" in path for path in names)
        grub = any(re.search(r"/grub[^/]*[.]efi$", path) for path in names)
        loaders = list(self.contents.boot_loaders) if self.contents else []
        return list(dict.fromkeys([*loaders, *["GRUB"] * grub, *["systemd-boot"] * systemd]))

    @property
    def firmware(self) -> list[str]:
        """Return the firmware that can start it, ``BIOS`` and ``UEFI``; empty without a table."""
        if self.table is None:
            return []
        return ["BIOS"] * self.table.bios + ["UEFI"] * self.table.uefi

    @property
    def kernel_beside(self) -> bool:
        """Return whether a kernel and an initrd are beside the image."""
        stem = manifest.stem_of(self.file.path)
        return all(
            any(stem.with_name(f"{stem.name}.{suffix}").is_file() for suffix in suffixes)
            for suffixes in (KERNEL, INITRD)
        )


@contextlib.contextmanager
def inspected(
    path: Path | str,
    *,
    allow_backing: bool = False,
    checksums: Path | None = None,
    cache: Path | None = None,
) -> Iterator[Inspection]:
    """Inspect an image.

    :param path: the file, or its name without the suffix.
    :param allow_backing: follow the names of backing files out of the image's directory.
    :param checksums: see :func:`~hotplate.image.checksum.sha256_of`.
    :param cache: the directory for raw disks; with one, and as root, the host's kernel mounts xfs
        and btrfs. None to mount nothing.
    :return: the inspection; its contents are readable for as long as the context lasts.
    :raises UsageError: there is no such file.
    :raises ImageError: it is no image, or damaged.
    :raises HostError: ``qemu-nbd`` is missing.

    Example::

        with inspected("web.qcow2") as inspection:
            print(inspection.contents.distribution)
    """
    file = ImageFile.open(path, allow_backing=allow_backing)
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(open_disk(file))
        check_end(file.path, disk.read(0, HEAD), disk.size)
        listed = tuple(partitions(disk))
        system = put_together(disk, listed, Mounts(file, disk, cache, stack))
        yield _inspection(file, disk, listed, system, checksums)


def _inspection(
    file: ImageFile,
    disk: Disk,
    listed: tuple[Partition, ...],
    system: System,
    checksums: Path | None,
) -> Inspection:
    table = read_table(disk.read(0, HEAD))
    contents = Contents(system.tree) if system.tree else None
    error = None if contents else system.unread or _why_not(disk, listed)
    state, built = _manifest(file.path, checksums)
    looked_at = Inspection(
        file,
        table,
        listed,
        system.root,
        contents,
        error,
        state,
        built,
        _elements(built, contents),
        efi=system.efi,
        missing=tuple(system.missing),
    )
    if contents is None:
        return looked_at
    wrong = (
        *_boot_findings(looked_at, contents),
        *_mount_findings(system),
        *findings(contents),
        *deviations(contents, listed, looked_at.efi_files),
    )
    return replace(looked_at, findings=wrong)


def _why_not(disk: Disk, listed: tuple[Partition, ...]) -> ImageError:
    """Return the error of an image without a file system that we can read and has a system."""
    kinds = {each.file_system for each in listed if each.purpose == "data" and each.file_system}
    volumes = any(each.volume for each in listed)
    others = sorted(kinds - {"ext4", "swap", *KINDS, *(["lvm"] if volumes else [])})
    if not kinds and read_table(disk.read(0, HEAD)) is not None:
        raise ImageError(
            f'"{disk.name}" is not an image: it has a partition table, but no partition with a '
            "file system that is known",
            hint="look at it with libguestfs: apt-get install guestfish && "
            f"guestfish --ro -a {shlex.quote(disk.name)} run : list-filesystems",
        )
    if not kinds:
        raise ImageError(
            f'"{disk.name}" is not an image: it has neither a partition table nor a file system '
            "that is known",
            hint=f"look at it with: file {shlex.quote(str(disk.name))}",
        )
    if refused := next((each for each in listed if each.refused), None):
        return NotReadHere(f'{refused} of "{disk.name}" is {refused.refused}')
    if not others:
        words = f'no file system in "{disk.name}" has "/etc" and "/usr": there is no system in it'
        return ImageError(words)
    return NotReadHere(
        f'the file system of "{disk.name}" is {" and ".join(others)}, which is not read here: '
        "look at it with libguestfs: apt-get install guestfish && "
        f"guestfish --ro -a {shlex.quote(disk.name)} -i"
    )


def _manifest(image: Path, checksums: Path | None) -> tuple[Manifest, dict[str, Any]]:
    document = manifest.read(image)
    if not document:
        return Manifest.NONE, {}
    if document.get("sha256") != sha256_of(image, checksums):
        return Manifest.OTHER, {}
    if not manifest.is_readable(document):
        return Manifest.UNREADABLE, {}
    return Manifest.FITS, document


def _elements(built: Mapping[str, Any], contents: Contents | None) -> tuple[str, ...]:
    names = built.get("elements")
    if names is None and contents is not None:
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(contents.tree.text(IN_IMAGE, MAX_TEXT))
            names = document.get("elements") if isinstance(document, dict) else None
    listed = names if isinstance(names, (list, dict)) else ()
    return tuple(each for each in listed if isinstance(each, str))


def _mount_findings(system: System) -> Iterator[ImageFault]:
    """Yield the mounts in fstab for which a boot waits in vain."""
    if system.other_root and system.tree is not None:
        root = system.tree.file_system
        yield fails(
            "fstab",
            f'"/etc/fstab" has "{system.other_root}" as "/", and the file system is another: '
            "the boot waits for it, and ends in the emergency shell",
            f"write LABEL={root.label}" if root.label else f"write UUID={UUID(root.uuid)}",
            ["/etc/fstab"],
        )
    for name, path in system.nowhere:
        yield fails(
            "fstab",
            f'"/etc/fstab" mounts "{name}" on "{path}", and the image has no such file system: '
            "the boot waits for it, and ends in the emergency shell",
            "remove the line, or give it the option nofail where it is another disk's",
            ["/etc/fstab"],
        )


def _boot_findings(looked_at: Inspection, contents: Contents) -> Iterator[ImageFault]:
    """Yield the reasons why no firmware starts the image, as its outside and kernels tell."""
    if looked_at.table is None and not looked_at.kernel_beside:
        yield fails(
            "no-kernel-beside",
            f'"{looked_at.file.path.name}" is one file system without a boot loader, and no '
            "kernel and initrd lie beside it",
            "copy NAME.vmlinuz or NAME.kernel and NAME.initrd or NAME.initramfs to it, or build a "
            "whole disk",
        )
    if looked_at.table is not None and not looked_at.firmware:
        yield fails(
            "no-boot-loader",
            "there is neither boot code for a BIOS nor an EFI system partition",
            "add a boot loader; with diskimage-builder that is the element vm",
        )
    if looked_at.table is not None and not looked_at.table.uefi and not contents.kernels:
        yield fails(
            "no-kernel",
            'there is no kernel in "/boot"',
            "put a kernel in: linux-image-cloud-amd64",
        )
    if contents.tree.file_system.unclean:
        yield fails(
            "unclean",
            "the file system was not unmounted: the disk was copied from a running server, what "
            "was written last may be missing, and is not seen here",
            "shut the server down before its disk is captured",
        )
