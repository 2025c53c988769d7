"""File systems of an image that the host's kernel reads: xfs and btrfs, as root.

They are mounted read-only, by a helper in a mount namespace of its own, and read by the descriptor
of their folder, so that no path leads out of them.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hotplate.children.keeper import FIRST_CHILD_FD, Keeper
from hotplate.children.mounts import MOUNT_OPTIONS
from hotplate.children.reaper import checked, libc
from hotplate.errors import ImageError
from hotplate.image.inspect import ImageFile
from hotplate.image.overlay import bounded, check_space
from hotplate.inspection.disk import Disk, image_options, opened_files
from hotplate.inspection.ext4 import ROOT_INODE, Inode, NotReadHere
from hotplate.inspection.mount_helper import DISK
from hotplate.inspection.partitions import Partition
from hotplate.inspection.raw_disk import raw_disk
from hotplate.inspection.tree import MAX_FILES
from hotplate.timing.deadline import Deadline

KINDS = ("xfs", "btrfs")
#: The program that shows an image of another format as a raw file, without unpacking it, and the
#: device that it needs.
SERVER, FUSE = "qemu-storage-daemon", Path("/dev/fuse")
#: Limit of the start of that program, and how often it is asked for.
SECONDS, INTERVAL = 10.0, 0.01
#: Bytes that are copied at once of a volume in several pieces.
CHUNK = 1 << 20

# The number of the system call is the same for all processors (Linux 5.6), from openat2.h.
_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 2, 4, 8


class _OpenHow(ctypes.Structure):
    """Linux' struct open_how."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def open_below(folder: int, path: str, flags: int) -> int:
    """Open a path in a folder; no link is followed, and none leads out (openat2(2)).

    :raises OSError: it cannot be opened.
    """
    resolve = _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    opened: int = libc.syscall(_SYS_OPENAT2, folder, os.fsencode(path), ctypes.byref(how), size)
    checked(opened, path)
    return opened


class Mounted:
    """A file system that is mounted; see :class:`~hotplate.inspection.tree.FileSystem`.

    :param folder: a descriptor of its top, which stays the caller's.
    :param disk: has the time limit, and the name for messages.
    :ivar unclean: False: the kernel leaves out changes that are in the journal only.
    """

    unclean = False

    def __init__(self, folder: int, disk: Disk, *, uuid: str = "", label: str = "") -> None:
        self.uuid, self.label = uuid, label
        self._folder, self._disk = folder, disk
        # A number for each path: those of the file system are not unique in btrfs.
        self._paths = {ROOT_INODE: "."}
        self._numbers = {".": ROOT_INODE}
        self._next = itertools.count(ROOT_INODE + 1)

    def below(self, path: str) -> Mounted:
        """Return a folder of it as a file system, such as a subvolume of btrfs.

        :raises ImageError: there is none.
        """
        with self._open(path, os.O_PATH | os.O_DIRECTORY):
            pass
        part = Mounted(self._folder, self._disk, uuid=self.uuid, label=self.label)
        part._paths[ROOT_INODE], part._numbers = path, {path: ROOT_INODE}
        return part

    @contextmanager
    def _open(self, path: str, flags: int) -> Iterator[int]:
        """Open a path; an OSError in the context is one of the image."""
        self._disk.check_time()
        try:
            opened = open_below(self._folder, path, flags)
            try:
                yield opened
            finally:
                os.close(opened)
        except OSError as error:
            raise ImageError(
                f'"/{path}" in the image "{self._disk.name}" cannot be read: '
                f"{os.strerror(error.errno or 0)}"
            ) from error

    def inode(self, number: int) -> Inode:
        """See :meth:`.FileSystem.inode`."""
        with self._open(self._paths[number], os.O_PATH | os.O_NOFOLLOW) as opened:
            found = os.fstat(opened)
        return Inode(
            number,
            found.st_mode,
            found.st_uid,
            found.st_gid,
            found.st_size,
            found.st_nlink,
            int(found.st_mtime),
            0,
            b"",
        )

    def entries(self, directory: Inode) -> dict[str, int]:
        """See :meth:`.FileSystem.entries`."""
        if not directory.is_directory:
            return {}
        path = self._paths[directory.number]
        with (
            self._open(path, os.O_RDONLY | os.O_DIRECTORY) as opened,
            os.scandir(opened) as listed,
        ):
            names = [each.name for each in itertools.islice(listed, MAX_FILES)]
        prefix = "" if path == "." else f"{path}/"
        return {name: self._number(prefix + name) for name in names}

    def _number(self, path: str) -> int:
        number = self._numbers.get(path)
        if number is None:
            number = self._numbers[path] = next(self._next)
            self._paths[number] = path
        return number

    def read(self, inode: Inode, limit: int) -> bytes:
        """See :meth:`.FileSystem.read`."""
        # Another type would wait for a writer, or be a device of the host.
        if not stat.S_ISREG(inode.mode):
            return b""
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
        with (
            self._open(self._paths[inode.number], flags) as opened,
            os.fdopen(opened, "rb", closefd=False) as stream,
        ):
            return stream.read(limit)

    def link(self, inode: Inode) -> str:
        """See :meth:`.FileSystem.link`."""
        with self._open(self._paths[inode.number], os.O_PATH | os.O_NOFOLLOW) as opened:
            return os.readlink("", dir_fd=opened)

    def space(self) -> tuple[int, int, int, int, int]:
        """See :meth:`.FileSystem.space`."""
        found = os.fstatvfs(self._folder)
        return found.f_files, found.f_ffree, found.f_bfree, found.f_bavail, found.f_blocks


class Mounts:
    """Mounts file systems of one image, for as long as a stack lasts.

    :param disk: of the image.
    :param cache: for an image that has to be unpacked; None to mount nothing.
    """

    def __init__(self, file: ImageFile, disk: Disk, cache: Path | None, stack: ExitStack) -> None:
        self._file, self._disk, self._cache, self._stack = file, disk, cache, stack
        self._keeper: Keeper | None = None
        self._place = ""
        self._served = False

    def obstacle(self, file_system: str) -> str:
        """Return why a file system is not mounted, as it reads after "is"; "" when it is."""
        if file_system not in KINDS:
            return f"{file_system or 'unknown'}, which is not read here"
        guest = f"guestfish --ro -a {shlex.quote(str(self._file.path))} -i"
        if self._cache is None or os.geteuid() != 0:
            return (
                f"{file_system}, which the host's kernel reads, for root only: run hotplate "
                "inspect as root, or without root libguestfs: apt-get install guestfish && "
                f"{guest}"
            )
        return ""

    def open(
        self, partition: Partition, *, uuid: str, label: str
    ) -> tuple[Mounted, Mounted | None]:
        """Mount a file system.

        :return: the system in it, or its top; and of btrfs the top of all its subvolumes.
        :raises ImageError: the kernel refuses it.
        :raises HostError: the image cannot be unpacked.
        """
        if self._cache is None:
            raise ValueError("there is no cache, and nothing is to be mounted")
        if self._keeper is None:
            self._place = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="hotplate-"))
            self._keeper = self._stack.enter_context(Keeper("hotplate.inspection.mount_helper"))
            self._keeper.request("prepare", place=self._place)
            self._served = self._file.format != "raw" and self._serve(self._keeper)
        with ExitStack() as opened:
            fds, offset = [], partition.start
            if len(partition.pieces) > 1 or not self._served:
                path, offset = self._raw(partition, self._cache)
                fds = [opened.enter_context(path.open("rb")).fileno()]
            try:
                _, folders = self._keeper.request(
                    "mount",
                    fds,
                    file_system=partition.file_system,
                    options=MOUNT_OPTIONS[partition.file_system],
                    offset=offset,
                    size=partition.size,
                )
            except OSError as error:
                raise NotReadHere(
                    f'{partition} of "{self._disk.name}" is {partition.file_system}, and the '
                    f"host's kernel does not mount it: {error.strerror}"
                ) from error
        for each in folders:
            self._stack.callback(os.close, each)
        system, *volumes = (Mounted(each, self._disk, uuid=uuid, label=label) for each in folders)
        return system, volumes[0] if volumes else None

    def _serve(self, keeper: Keeper) -> bool:
        """Let a program serve the disk of an image of another format as a raw file (FUSE).

        :return: False where the host cannot; then the image has to be unpacked.
        """
        program = shutil.which(SERVER)
        if program is None or not FUSE.exists():
            return False
        options = image_options(self._file, FIRST_CHILD_FD)
        mountpoint = f"{self._place}/{DISK}"
        with ExitStack() as opened:
            child = keeper.spawn(
                [
                    *(*bounded(program), "--blockdev", f"node-name=disk,read-only=on,{options}"),
                    "--export",
                    f"type=fuse,id=disk,node-name=disk,mountpoint={mountpoint},writable=off",
                ],
                directory=Path("/"),
                stderr=Path(os.devnull),
                fds=opened_files(self._file, opened),
            )
        deadline = Deadline(SECONDS, "the disk to be served")
        while child.status is None and not deadline.passed:
            if keeper.request("served")[0]:
                return True
            time.sleep(INTERVAL)
        child.kill()
        return False

    def _raw(self, partition: Partition, cache: Path) -> tuple[Path, int]:
        """Return a raw file with a partition in one piece, and the offset of the partition."""
        if len(partition.pieces) < 2:
            return self._stack.enter_context(raw_disk(self._file, cache)), partition.start
        check_space(Path(self._place), needed=partition.size)
        temporary = tempfile.NamedTemporaryFile(prefix="hotplate-volume-")  # noqa: SIM115
        file = self._stack.enter_context(temporary)
        content = partition.on(self._disk)
        for at in range(0, partition.size, CHUNK):
            data = content.read(at, CHUNK)
            # What is empty stays a hole.
            if data.count(0) < len(data):
                file.seek(at)
                file.write(data)
        file.truncate(partition.size)
        file.flush()
        return Path(file.name), 0
