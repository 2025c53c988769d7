"""The helper process that mounts file systems of an image, for the host's kernel to read.

Run by :class:`~hotplate.children.keeper.Keeper` as root; uses the standard library only. Its mount
namespace is its own: the mounts are seen by nobody else, and go with it, however it ends.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from hotplate.children import mounts, reaper
from hotplate.children.reaper import checked, libc

CLONE_NEWNS = 0x00020000
MNT_DETACH = 2
#: In the folder of the mounts: the disk of an image, where a program serves it (FUSE).
DISK = "disk"


class MountHelper(reaper.Reaper):
    """Mounts file systems, and hands out their folders."""

    def __init__(self, control: socket.socket, harness: int) -> None:
        super().__init__(control, harness)
        self.folder = Path()
        self.mounted: list[Path] = []

    def do_prepare(self, *, place: str) -> None:
        """Enter a mount namespace.

        :param place: an empty folder of the host, in which everything is mounted.
        """
        checked(libc.unshare(CLONE_NEWNS), "unshare of mounts")
        mounts.keep_private()
        mounts.mount("hotplate", place, "tmpfs", options="mode=700,size=1m")
        self.folder = Path(place)
        (self.folder / DISK).touch()

    def do_served(self) -> int:
        """Return the bytes of the disk that a program serves, 0 until it does."""
        return (self.folder / DISK).stat().st_size

    def do_mount(self, *, file_system: str, options: str, offset: int, size: int) -> None:
        """Mount a file system read-only: of the request's descriptor, or of the served disk.

        The folder of the system in it is handed out, or its top when there is no system; of btrfs
        then also the top of all subvolumes.

        :param options: of the file system.
        :param offset: bytes of the disk before it.
        :param size: its bytes.
        """
        if not self.received:
            self.received.append(os.open(self.folder / DISK, os.O_RDONLY | os.O_CLOEXEC))
        (image,) = self.received
        top, volumes = (self.folder / f"{name}{len(self.mounted)}" for name in ("top", "volumes"))
        self.mounted += [top, volumes]
        top.mkdir()
        volumes.mkdir()
        btrfs = file_system == "btrfs"
        mounts.loop(
            image,
            top,
            kind=file_system,
            options=options,
            offset=offset,
            size=size,
            # The tree of all subvolumes has this number (btrfs(5)).
            also=(volumes, f"{options},subvolid=5") if btrfs else None,
        )
        try:
            system = top / mounts.system_in(top)
        except OSError:
            system = top
        for each in (system, *([volumes] if btrfs else [])):
            self.handed_out.append(os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def end_children(self) -> None:
        """See :meth:`~hotplate.children.reaper.Reaper.end_children`; unmounts first.

        A file system would wait for a program that serves its disk no more.
        """
        for each in self.mounted:
            libc.umount2(os.fsencode(each), MNT_DETACH)
        super().end_children()


def main(words: list[str]) -> None:
    """See :func:`hotplate.children.reaper.main`."""
    reaper.main(words, MountHelper)
