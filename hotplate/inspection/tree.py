"""The files of an image by path; links are resolved as in a guest."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from hotplate.inspection.ext4 import ROOT_INODE, Inode

#: Limit of the symbolic links in one path (path_resolution(7)).
MAX_LINKS = 40

#: Limit of the bytes of one file.
MAX_TEXT = 16 << 20

#: Limit of the bytes of a settings file: parsing takes longer than reading, for some formats
#: quadratically.
TEXT = 256 << 10

MAX_DEPTH = 64
#: Limit of the files of an image.
MAX_FILES = 1_000_000


class FileSystem(Protocol):
    """A file system, by the numbers of its inodes; its top has the number ``ROOT_INODE``."""

    uuid: str
    label: str
    unclean: bool

    def inode(self, number: int) -> Inode:
        """Return an inode by its number.

        :raises ImageError: there is none of that number, or it cannot be read.
        """

    def entries(self, directory: Inode) -> dict[str, int]:
        """Return the inode numbers by name in a directory, without ``.`` and ``..``.

        Bytes that are not UTF-8 become surrogates, as in :func:`os.fsdecode`.

        :raises ImageError: it cannot be read.
        """

    def read(self, inode: Inode, limit: int) -> bytes:
        """Return the first bytes of a file.

        :param limit: the maximum number of bytes.
        :raises ImageError: it cannot be read, or is encrypted.
        """

    def link(self, inode: Inode) -> str:
        """Return the target of a symbolic link.

        :raises ImageError: it cannot be read.
        """

    def space(self) -> tuple[int, int, int, int, int]:
        """Return inodes, free inodes, free blocks, blocks free for users, blocks."""


#: More inodes than a file system has.
_SPAN = 1 << 64


class Joined:
    """File systems of one image, as a guest mounts them; a file system itself.

    The number of an inode is its own, and the number of its file system times ``_SPAN``.

    :param root: the root file system.
    """

    def __init__(self, root: FileSystem) -> None:
        self.uuid, self.label, self.unclean = root.uuid, root.label, root.unclean
        self._parts = [root]
        self._over: dict[tuple[int, str], int] = {}
        self.space = root.space

    def mount(self, path: str, part: FileSystem) -> None:
        """Put a file system over a directory, unless nothing leads to its place."""
        above, _, name = path.rstrip("/").rpartition("/")
        directory = Tree(self).find(above or "/")
        if directory is not None and directory.is_directory and name:
            self._over[directory.number, name] = len(self._parts) * _SPAN + ROOT_INODE
            self._parts.append(part)

    def _of(self, inode: Inode) -> tuple[FileSystem, Inode]:
        part, number = divmod(inode.number, _SPAN)
        return self._parts[part], replace(inode, number=number)

    def inode(self, number: int) -> Inode:
        """See :meth:`FileSystem.inode`."""
        part, own = divmod(number, _SPAN)
        return replace(self._parts[part].inode(own), number=number)

    def entries(self, directory: Inode) -> dict[str, int]:
        """See :meth:`FileSystem.entries`."""
        part, own = self._of(directory)
        base = directory.number - own.number
        names = {name: base + number for name, number in part.entries(own).items()}
        for (above, name), number in self._over.items():
            if above == directory.number:
                names[name] = number
        return names

    def read(self, inode: Inode, limit: int) -> bytes:
        """See :meth:`FileSystem.read`."""
        part, own = self._of(inode)
        return part.read(own, limit)

    def link(self, inode: Inode) -> str:
        """See :meth:`FileSystem.link`."""
        part, own = self._of(inode)
        return part.link(own)


class Tree:
    """The tree of files of an image, its root file system.

    Paths are absolute or relative to the root; the result for a missing path is None or empty.

    :ivar efi: the files of the EFI system partition, whether it is mounted or not.
    """

    def __init__(self, file_system: FileSystem) -> None:
        self.file_system = file_system
        self.efi: Tree | None = None
        self._root = file_system.inode(ROOT_INODE)
        self._directories: dict[int, dict[str, int]] = {}

    def find(self, path: str, *, follow: bool = True) -> Inode | None:
        """Return the inode at a path.

        :param follow: also follow a link at its end.
        """
        steps = self._walk(path, follow=follow)
        return steps[-1][1] if steps else None

    def real_path(self, path: str) -> str:
        """Return a path with all links resolved; "" when it does not exist."""
        steps = self._walk(path, follow=True)
        return "/" + "/".join(name for name, _ in steps[1:]) if steps else ""

    def _walk(self, path: str, *, follow: bool) -> list[tuple[str, Inode]]:
        """Return the steps from the root to a path, links resolved; empty for a missing path."""
        steps = [("", self._root)]
        left = [part for part in reversed(path.split("/")) if part and part != "."]
        links = 0
        while left:
            name = left.pop()
            if name == "..":
                steps = steps[:-1] or steps
                continue
            number = self._names(steps[-1][1]).get(name)
            if number is None:
                return []
            inode = self.file_system.inode(number)
            if inode.is_link and (left or follow):
                links += 1
                if links > MAX_LINKS:
                    return []
                target = self.file_system.link(inode)
                if target.startswith("/"):
                    steps = steps[:1]
                left += [part for part in reversed(target.split("/")) if part and part != "."]
                continue
            steps.append((name, inode))
        return steps

    def _names(self, directory: Inode) -> dict[str, int]:
        if directory.number not in self._directories:
            self._directories[directory.number] = self.file_system.entries(directory)
        return self._directories[directory.number]

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        directory = self.find(path)
        return sorted(self._names(directory)) if directory else []

    def paths(self, directory: str, pattern: str = "") -> list[str]:
        """Return the paths in a directory.

        :param pattern: the end of the names to return.
        """
        folder = directory.rstrip("/")
        return [f"{folder}/{name}" for name in self.names(directory) if name.endswith(pattern)]

    def exists(self, path: str) -> bool:
        """Return whether a path exists."""
        return self.find(path) is not None

    def is_link(self, path: str) -> bool:
        """Return whether a path is a link, even a dangling one."""
        inode = self.find(path, follow=False)
        return inode is not None and inode.is_link

    def target(self, path: str) -> str:
        """Return the target of a link, "" when the path is none."""
        inode = self.find(path, follow=False)
        return self.file_system.link(inode) if inode and inode.is_link else ""

    def end_of_links(self, path: str) -> str:
        """Return the path to which a chain of links leads, also when it does not exist."""
        for _ in range(MAX_LINKS):
            target = self.target(path)
            if not target:
                break
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        return path

    def is_program(self, path: str) -> bool:
        """Return whether a path leads to an executable file."""
        inode = self.find(path)
        return inode is not None and inode.is_file and bool(inode.mode & 0o111)

    def size(self, path: str) -> int:
        """Return the bytes of a file, 0 when it is none."""
        inode = self.find(path)
        return inode.size if inode and inode.is_file else 0

    def read(self, path: str, limit: int = MAX_TEXT) -> bytes:
        """Return a file's first bytes, none when it is no file."""
        inode = self.find(path)
        return self.file_system.read(inode, limit) if inode and inode.is_file else b""

    def text(self, path: str, limit: int = TEXT) -> str:
        """Return the first bytes of a file as text, with invalid UTF-8 replaced."""
        return self.read(path, limit).decode("utf-8", "replace")

    def walk(self, top: str = "/") -> Iterator[tuple[str, Inode]]:
        """Yield everything below a directory with its path, without following links."""
        directory = self.find(top)
        waiting = [(top.rstrip("/"), directory, 0)] if directory else []
        left = MAX_FILES
        seen = set()
        while waiting:
            folder, inode, depth = waiting.pop()
            # A damaged directory may contain itself.
            if inode.number in seen or depth > MAX_DEPTH:
                continue
            seen.add(inode.number)
            for name, number in sorted(self.file_system.entries(inode).items()):
                left -= 1
                if not left:
                    return
                path, child = f"{folder}/{name}", self.file_system.inode(number)
                yield path, child
                if child.is_directory:
                    waiting.append((path, child, depth + 1))
