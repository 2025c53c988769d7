"""Differences of two images: "what changed between yesterday's image and today's"."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from hotplate.errors import ImageError
from hotplate.inspection.contents import Contents
from hotplate.inspection.ext4 import Inode
from hotplate.inspection.inspection import Inspection

#: Limit of the bytes of a file in the EFI system partition.
MAX_EFI_FILE = 256 << 20

NO_PACKAGE = "no package"

_COMPILED = re.compile(r"^(?P<folder>.*)/__pycache__/(?P<module>[^/]+?)\.[^/]+\.pyc$")


@dataclass(frozen=True)
class Snapshot:
    """The compared properties of an image.

    :param packages: name -> version, of dpkg's packages and of Python distributions; the latter
        with their directory after the name.
    :param hooks: group -> name and version of its tool.
    :param services: units that a boot starts, each with "".
    :param users: name -> numbers, home and shell.
    :param facts: single values, such as the system, the agent and the firmware; and the files of
        the EFI system partition.
    :param files: path -> inode.
    :param owners: path -> its package, its folder in ``/opt``, or :data:`NO_PACKAGE`.
    """

    inspection: Inspection
    contents: Contents
    packages: Mapping[str, str]
    hooks: Mapping[str, str]
    services: Mapping[str, str]
    users: Mapping[str, str]
    facts: Mapping[str, str]
    files: Mapping[str, Inode]
    owners: Mapping[str, str]

    def sizes(self) -> dict[str, int]:
        """Return the bytes of the files of each owner, the largest first."""
        sizes: dict[str, int] = {}
        seen: set[int] = set()
        for path, inode in self.files.items():
            # Another name of a file takes no more space.
            if inode.is_file and inode.number not in seen:
                seen.add(inode.number)
                owner = self.owners[path]
                sizes[owner] = sizes.get(owner, 0) + inode.size
        return dict(sorted(sizes.items(), key=lambda item: (-item[1], item[0])))


def snapshot(inspection: Inspection) -> Snapshot:
    """Return all compared properties of an image.

    :raises ImageError: its root file system cannot be read; the text has the reason.
    """
    contents = inspection.contents
    if contents is None:
        raise ImageError(inspection.unread)
    files = dict(contents.tree.walk())
    return Snapshot(
        inspection,
        contents,
        _packages(contents),
        {hook.group: hook.tool_version or hook.tool for hook in contents.hooks},
        dict.fromkeys(contents.units.enabled(), ""),
        _users(contents),
        _facts(inspection, contents),
        files,
        {path: _owner(contents, path) for path in files},
    )


def _packages(contents: Contents) -> dict[str, str]:
    packages = {name: each.full_version for name, each in contents.packages.installed.items()}
    for each in contents.packages.python:
        packages[f"{each.name} ({each.place})"] = each.version
    return packages


def _users(contents: Contents) -> dict[str, str]:
    users = {}
    for line in contents.tree.text("/etc/passwd").splitlines():
        name, _, rest = line.partition(":")
        # Leave out the password field and the real name.
        fields = rest.split(":")
        if len(fields) == 6:
            users[name] = ":".join([*fields[1:3], *fields[4:]])
    return users


def _facts(inspection: Inspection, contents: Contents) -> dict[str, str]:
    agent, init = contents.agent, contents.cloud_init
    return _efi(inspection) | {
        "system": f"{contents.distribution} {contents.arch}".strip(),
        "kernel": ", ".join(contents.kernels) or "none",
        "boot loader": ", ".join(inspection.boot_loaders) or "none",
        "firmware": ", ".join(inspection.firmware) or "none",
        "agent": f"{agent.install_type} {agent.version}".strip() if agent else "none",
        "data sources": ", ".join(init.sources) if init else "none",
        "network": ", ".join(contents.renderers) or "none",
        "DHCP client": contents.dhcp_client or "none",
        "faults": ", ".join(sorted({each.kind for each in inspection.findings})) or "none",
    }


def _efi(inspection: Inspection) -> dict[str, str]:
    """Return the files of the EFI system partition, each with its size and hash."""
    facts: dict[str, str] = {}
    efi = inspection.efi
    if efi is None:
        return facts
    for path in inspection.efi_files:
        digest = hashlib.sha256(efi.read(path, MAX_EFI_FILE)).hexdigest()
        facts[f"EFI {path}"] = f"{efi.size(path)} bytes, SHA-256 {digest[:16]}"
    return facts


def _owner(contents: Contents, path: str) -> str:
    owner = contents.packages.owner(path)
    if not owner and (compiled := _COMPILED.match(path)):
        owner = contents.packages.owner(f"{compiled['folder']}/{compiled['module']}.py")
    if not owner and path.startswith("/opt/"):
        # A virtual environment, or another builder's folder there, counts as one owner.
        return "/".join(path.split("/")[:3])
    return owner or NO_PACKAGE


#: Limit of the bytes that are compared of two files of one size.
COMPARED = 64 << 20


class How(StrEnum):
    """Kind of a difference."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"


@dataclass(frozen=True)
class Difference:
    """One difference.

    :param before: the value in the first image, "" when it is missing there.
    :param after: the value in the second image.
    """

    name: str
    how: How
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class OwnersFiles:
    """The files of one package, or of none, that differ.

    :param before: bytes of all its files in the first image.
    :param after: the same in the second image.
    """

    owner: str
    files: tuple[Difference, ...]
    before: int
    after: int

    def count(self, how: How) -> int:
        """Return the number of files with a kind of difference."""
        return sum(each.how is how for each in self.files)


@dataclass(frozen=True)
class Comparison:
    """All differences of two images."""

    first: Snapshot
    second: Snapshot
    facts: tuple[Difference, ...]
    packages: tuple[Difference, ...]
    hooks: tuple[Difference, ...]
    services: tuple[Difference, ...]
    users: tuple[Difference, ...]
    owners: tuple[OwnersFiles, ...]

    @property
    def same(self) -> bool:
        """Return True when nothing compared differs."""
        parts = (self.facts, self.packages, self.hooks, self.services, self.users)
        return not any(parts) and not any(each.files for each in self.owners)


def compared(first: Snapshot, second: Snapshot, *, exact: bool = False) -> Comparison:
    """Return the differences of the second image from the first.

    Files are compared by type, mode, owner, size, and link target. Contents are compared when the
    size is equal, except for files of the same version of a package with equal times.

    :param exact: compare the times and the contents of all files.
    """
    return Comparison(
        first,
        second,
        _differences(first.facts, second.facts),
        _differences(first.packages, second.packages),
        _differences(first.hooks, second.hooks),
        _differences(first.services, second.services),
        _differences(first.users, second.users),
        tuple(_owners(first, second, exact=exact)),
    )


def _differences(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Difference, ...]:
    return tuple(
        Difference(name, _how(name, before, after), before.get(name, ""), after.get(name, ""))
        for name in sorted(before.keys() | after.keys())
        if name not in before or name not in after or before[name] != after[name]
    )


def _how(name: str, before: Mapping[str, object], after: Mapping[str, object]) -> How:
    if name not in before:
        return How.ADDED
    return How.CHANGED if name in after else How.REMOVED


def _owners(first: Snapshot, second: Snapshot, *, exact: bool) -> Iterator[OwnersFiles]:
    """Yield the owners of files that differ, those with the largest change of size first."""
    files: dict[str, list[Difference]] = {}
    for path in sorted(first.files.keys() | second.files.keys()):
        if difference := _file(path, first, second, exact=exact):
            owner = second.owners.get(path) or first.owners[path]
            files.setdefault(owner, []).append(difference)
    before, after = first.sizes(), second.sizes()
    for owner in sorted(files, key=lambda each: -abs(after.get(each, 0) - before.get(each, 0))):
        yield OwnersFiles(owner, tuple(files[owner]), before.get(owner, 0), after.get(owner, 0))


def _file(path: str, first: Snapshot, second: Snapshot, *, exact: bool) -> Difference | None:
    before, after = first.files.get(path), second.files.get(path)
    if before is None or after is None:
        return Difference(
            path, _how(path, first.files, second.files), _outside_of(before), _outside_of(after)
        )
    if _outside_of(before) != _outside_of(after):
        return Difference(path, How.CHANGED, _outside_of(before), _outside_of(after))
    if _content_differs(path, first, second, exact=exact):
        return Difference(path, How.CHANGED, "", "other content")
    if exact and before.modified != after.modified:
        return Difference(path, How.CHANGED, _time(before), _time(after))
    return None


def _time(inode: Inode) -> str:
    return datetime.fromtimestamp(inode.modified, UTC).isoformat()


def _outside_of(inode: Inode | None) -> str:
    """Return mode, owner and size as one text; a directory's size has no meaning."""
    if inode is None:
        return ""
    size = "" if inode.is_directory else f" {inode.size}"
    return f"{inode.mode:o} {inode.uid}:{inode.gid}{size}"


def _content_differs(path: str, first: Snapshot, second: Snapshot, *, exact: bool) -> bool:
    before, after = first.files[path], second.files[path]
    one, other = first.contents.tree.file_system, second.contents.tree.file_system
    if before.is_link:
        return one.link(before) != other.link(after)
    if not before.is_file:
        return False
    if not exact and before.modified == after.modified and _of_one(path, first, second):
        return False
    return one.read(before, COMPARED) != other.read(after, COMPARED)


def _of_one(path: str, first: Snapshot, second: Snapshot) -> bool:
    """Return whether a file is of one version of a package, which sets its times."""
    owner = first.owners[path]
    version = first.packages.get(owner)
    same = owner == second.owners[path] and version == second.packages.get(owner)
    return version is not None and same
