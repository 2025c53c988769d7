"""The helper process that mounts file systems of an image, for the host's kernel to read.

Run by :class:`~hotplate.children.keeper.Keeper` as root; uses the standard library only. Its mount
namespace is its own: the mounts are seen by nobody else, and go with it, however it ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hotplate.children import mounts, reaper
from hotplate.children.reaper import checked, libc

CLONE_NEWNS = 0x00020000


class MountHelper(reaper.Reaper):
    """Mounts file systems, and hands out their folders."""

    mounted = 0

    def do_mount(
        self, *, place: str, file_system: str, options: str, offset: int, size: int
    ) -> None:
        """Mount a file system of the request's descriptor, which is a raw disk, read-only.

        The folder of the system in it is handed out, or its top when there is no system; of btrfs
        then also the top of all subvolumes.

        :param place: an empty folder of the host.
        :param options: of the file system.
        :param offset: bytes of the disk before it.
        :param size: its bytes.
        """
        (image,) = self.received
        folder = Path(place)
        if not self.mounted:
            checked(libc.unshare(CLONE_NEWNS), "unshare of mounts")
            mounts.keep_private()
            mounts.mount("hotplate", place, "tmpfs", options="mode=700,size=1m")
        self.mounted += 1
        top, volumes = (folder / f"{name}{self.mounted}" for name in ("top", "volumes"))
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
        except FileNotFoundError:
            system = top
        for each in (system, *([volumes] if btrfs else [])):
            self.handed_out.append(os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


if __name__ == "__main__":
    reaper.main(sys.argv[1:], MountHelper)
