"""The file systems of an image, put together as a guest mounts them.

Sources: fstab(5); the Discoverable Partitions Specification, and systemd-gpt-auto-generator(8), for
file systems that are mounted without a line there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hotplate.errors import ImageError
from hotplate.inspection.disk import Disk
from hotplate.inspection.ext4 import Ext4, NotReadHere
from hotplate.inspection.fat import Fat
from hotplate.inspection.mounted import KINDS, Mounted, Mounts
from hotplate.inspection.partitions import Partition, identity
from hotplate.inspection.tree import FileSystem, Joined, Tree

#: The partition types that are mounted by themselves, and their places.
EXTENDED_BOOT = "bc13c2ff-59e6-4262-a352-b275fd6f7172"
DISCOVERED = {
    EXTENDED_BOOT: "/boot",
    "4d21b016-b534-45c2-a9fb-5c16e091fd2d": "/var",
    "3b8f8425-20e0-4f3b-907f-1a25a76f98e8": "/srv",
    "933ac7e1-2eb4-4f13-b844-0e14e2aef915": "/home",
    "8484680c-9521-48c6-9c11-b0720656f69e": "/usr",
    "b0e01050-ee5f-4390-949a-9101b17104e9": "/usr",
}
#: A partition by its number, on the first disk.
_NUMBERED = re.compile(r"^/dev/(?:(?:s|v|xv|h)da|nvme0n1p|mmcblk0p)(\d+)$")
_BY = re.compile(r"^/dev/disk/by-(uuid|label|partuuid|partlabel)/(.+)$")
_ESCAPED = re.compile(r"\\([0-7]{3})")


#: A name that belongs to one file system or partition, as :func:`_source` spells it.
_TAGGED = re.compile(r"(?:UUID|LABEL|PARTUUID|PARTLABEL)=.")
_NO_MOUNT = ("swap", "lvm")
#: The options of a mount for which no boot waits.
_OPTIONAL = {"nofail", "noauto", "x-systemd.automount"}


@dataclass
class System:
    """The root file system of an image, with the others at their places.

    :param root: its partition; None when there is none that is read.
    :param tree: all files, None without a root.
    :param unread: why there is no tree, as far as an error tells.
    :param efi: the files of its EFI system partition; None when there is none that is read.
    :param missing: a sentence for each file system that a guest mounts, and is not read.
    :param nowhere: name and place of each mount that a boot waits for, and no partition has.
    :param other_root: the name of "/" in fstab, when it is not that of the root file system.
    """

    root: Partition | None = None
    tree: Tree | None = None
    unread: ImageError | None = None
    efi: Tree | None = None
    missing: list[str] = field(default_factory=list)
    nowhere: list[tuple[str, str]] = field(default_factory=list)
    other_root: str = ""


class _Opener:
    """Opens each file system of an image once."""

    def __init__(self, disk: Disk, mounts: Mounts) -> None:
        self._disk, self._mounts = disk, mounts
        self._opened: dict[Partition, tuple[FileSystem, Mounted | None]] = {}

    def open(self, partition: Partition, subvolume: str = "") -> FileSystem:
        """Open a file system.

        :param subvolume: of btrfs; "" for the one with the system, or the default one.
        :raises ImageError: it cannot be read; the text has the reason.
        """
        if partition not in self._opened:
            self._opened[partition] = self._open(partition)
        system, volumes = self._opened[partition]
        return volumes.below(subvolume) if volumes and subvolume else system

    def _open(self, partition: Partition) -> tuple[FileSystem, Mounted | None]:
        if partition.refused:
            raise NotReadHere(f'{partition} of "{self._disk.name}" is {partition.refused}')
        content, kind = partition.on(self._disk), partition.file_system
        if kind == "ext4":
            return Ext4(content), None
        uuid, label = identity(content, kind)
        if kind == "vfat":
            return Fat(content, uuid=uuid, label=label), None
        if obstacle := self._mounts.obstacle(kind):
            raise NotReadHere(f'{partition} of "{self._disk.name}" is {obstacle}')
        return self._mounts.open(partition, uuid=uuid.replace("-", ""), label=label)


def put_together(disk: Disk, listed: tuple[Partition, ...], mounts: Mounts) -> System:
    """Find the root file system of an image, and mount the others in it."""
    opener = _Opener(disk, mounts)
    system = System(efi=_efi(opener, listed))
    for partition in sorted(
        (each for each in listed if each.file_system in ("ext4", *KINDS)),
        # First those that need no mount.
        key=lambda each: each.file_system in KINDS,
    ):
        try:
            opened = opener.open(partition)
            tree = Tree(opened)
            if tree.exists("/etc") and tree.exists("/usr"):
                system.root = partition
                break
        except ImageError as error:
            system.unread = error
    else:
        return system
    joined = Joined(opened)
    for partition, path, subvolume in sorted(_places(tree, disk, listed), key=lambda row: row[1]):
        try:
            joined.mount(path, opener.open(partition, subvolume))
        except ImageError as error:
            system.missing.append(f'"{path}" is not read: {error.message}')
    system.nowhere = list(_nowhere(tree, disk, listed))
    own = set(_names(disk, system.root)) if system.root is not None else set()
    roots = [words[0] for words in _mounts_of(tree) if words[1] == "/"]
    system.other_root = next(
        (each for each in roots if _TAGGED.match(_source(each)) and _source(each) not in own), ""
    )
    system.tree, system.unread = Tree(joined), None
    system.tree.efi = system.efi
    return system


def _efi(opener: _Opener, listed: tuple[Partition, ...]) -> Tree | None:
    for partition in listed:
        if partition.purpose == "efi system" and partition.file_system == "vfat":
            with contextlib.suppress(ImageError):
                return Tree(opener.open(partition))
    return None


def _places(
    tree: Tree, disk: Disk, listed: tuple[Partition, ...]
) -> Iterator[tuple[Partition, str, str]]:
    """Yield partition, place and subvolume of each mount of a guest, without its root."""
    names = {name: each for each in reversed(listed) for name in _names(disk, each)}
    taken = {"/"}
    for words in _mounts_of(tree):
        path = words[1]
        partition = names.get(_source(words[0]))
        if partition is None or path in taken or not partition.file_system:
            continue
        taken.add(path)
        # The EFI system partition is read beside the tree, and has files of the system in /boot.
        if partition.purpose != "efi system" or path == "/boot":
            options = words[3].split(",") if len(words) > 3 else []
            chosen = [each.partition("=")[2] for each in options if each.startswith("subvol=")]
            yield partition, path, (chosen or [""])[-1].strip("/")
    for partition in listed:
        place = DISCOVERED.get(partition.kind, "")
        if partition.purpose == "efi system" and not tree.exists("/efi"):
            place = "/boot" if not tree.names("/boot") else ""
        if place and place not in taken and partition.file_system:
            taken.add(place)
            yield partition, place, ""


def _mounts_of(tree: Tree) -> Iterator[list[str]]:
    """Yield the words of each line of fstab with a place for a mount."""
    for line in tree.text("/etc/fstab").splitlines():
        words = [_ESCAPED.sub(lambda it: chr(int(it[1], 8)), word) for word in line.split()]
        if len(words) > 2 and not words[0].startswith("#") and words[1].startswith("/"):
            yield [words[0], words[1].rstrip("/") or "/", *words[2:]]


def _nowhere(tree: Tree, disk: Disk, listed: tuple[Partition, ...]) -> Iterator[tuple[str, str]]:
    """Yield name and place of each mount that a boot waits for, and no partition has.

    None where a partition's own name is not known: it may be the one.
    """
    names: set[str] = set()
    for partition in listed:
        own = set(_names(disk, partition))
        # Swap is no mount, and the volumes of LVM are listed beside their partition.
        mountable = partition.purpose != "bios boot" and partition.file_system not in _NO_MOUNT
        known = any(each.startswith("UUID=") for each in own) and not partition.refused
        # blkid(8) also reads a label of FAT in the root directory.
        if partition.file_system == "vfat":
            known = any(each.startswith("LABEL=") for each in own)
        if mountable and not known:
            return
        names |= own
    for word, path, _, *rest in _mounts_of(tree):
        options = set(rest[0].split(",")) if rest else set()
        tagged = _TAGGED.match(_source(word))
        if path != "/" and tagged and _source(word) not in names and not options & _OPTIONAL:
            yield word, path


def _names(disk: Disk, partition: Partition) -> Iterator[str]:
    """Yield the names of a partition in fstab, as :func:`_source` spells them."""
    uuid, label = identity(partition.on(disk), partition.file_system)
    for kind, value in (
        ("UUID", uuid.lower()),
        ("LABEL", label),
        ("PARTUUID", partition.uuid.lower()),
        ("PARTLABEL", partition.label),
    ):
        if value:
            yield f"{kind}={value}"
    if partition.number:
        yield f"number {partition.number}"
    if partition.volume:
        yield f"/dev/{partition.volume}"
        # The device mapper doubles a dash in a name.
        group, _, volume = partition.volume.replace("-", "--").partition("/")
        yield f"/dev/mapper/{group}-{volume}"


def _source(word: str) -> str:
    if match := _BY.match(word):
        word = f"{match[1].upper()}={match[2]}"
    if match := _NUMBERED.match(word):
        return f"number {match[1]}"
    kind, sign, value = word.partition("=")
    value = value.strip('"')
    return f"{kind}{sign}{value.lower() if kind in ('UUID', 'PARTUUID') else value}"
