"""Mounts of an image's file system, read-only, and for a container with a layer on top of it.

The user ids of the image's files are moved into the container's range by an idmapped mount, so that
no file has to be changed.  Uses the standard library only.

Source: mount_setattr(2), open_tree(2), overlayfs.rst of the kernel; idmapped layers need
Linux 5.19.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
import subprocess
from pathlib import Path

from hotplate.children.reaper import CLONE_NEWUSER, checked, libc

#: The number of user ids of a container, and of group ids.
IDS = 65536

# From Linux' mount.h and fcntl.h.
MS_RDONLY, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 4, 32, 4096, 16384, 1 << 19
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MOUNT_ATTR_IDMAP = 0x00100000
# The numbers of these system calls are the same for all processors (Linux 5.2 and 5.12).
_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_MOUNT_SETATTR = 428, 429, 442
# From Linux' loop.h (LOOP_CONFIGURE since 5.8) and major.h.
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_LO_FLAGS_READ_ONLY, _LO_FLAGS_AUTOCLEAR = 1, 4
_LOOP_CONFIG_BYTES = 304
_LOOP_MAJOR = 7
#: The subvolumes of btrfs that hold the root: Fedora's, openSUSE's and Ubuntu's, Debian's; first,
#: the default subvolume, which is mounted.
SUBVOLUMES = ("", "root", "@", "@rootfs")
#: Characters of fstab that are read.
MAX_TABLE = 65536
#: Where a mount of its own has a part of the system.
OF_THE_SYSTEM = frozenset({"/etc", "/opt", "/usr", "/usr/local", "/var", "/var/lib"})
#: Options for mounting a file system that is never written to, also one that was not unmounted.
#: btrfs has had this one since Linux 5.9; without it, an unclean one is not mounted at all.
MOUNT_OPTIONS = {"ext4": "noload", "xfs": "norecovery,nouuid", "btrfs": "rescue=nologreplay"}
ATTEMPTS = 64
SECONDS = 60.0


class _MountAttributes(ctypes.Structure):
    """Linux' struct mount_attr."""

    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Mount something (mount(2)).

    :raises OSError: when the kernel refuses it.
    """
    words = (each.encode() for each in (source, target, kind))
    checked(libc.mount(*words, ctypes.c_ulong(flags), options.encode()), f"mount of {target}")


def keep_private() -> None:
    """Keep the mounts of this namespace from the host.

    What the host unmounts goes here too, where its mounts are shared.
    """
    mount("none", "/", flags=MS_REC | MS_SLAVE)


def run(program: str, *arguments: str, stdin: str = "") -> None:
    """Run a program of the host.

    :raises OSError: with its last words when it failed.
    """
    name = Path(program).name
    try:
        done = subprocess.run(
            [program, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SECONDS,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(110, f"{name}: no end after {SECONDS:.0f} s") from error
    if done.returncode:
        words = "; ".join(line for line in done.stderr.splitlines() if line)
        raise OSError(5, f"{name}: {words or f'exit status {done.returncode}'}")


def loop(
    file: int,
    target: Path,
    *,
    kind: str,
    options: str = "",
    offset: int = 0,
    size: int = 0,
    also: tuple[Path, str] | None = None,
) -> None:
    """Mount a file system in a file; its loop device goes with the mount.

    :param file: a descriptor; of one for reading only, the mount is read-only.
    :param kind: of the file system.
    :param options: of the file system, as mount(2) has them.
    :param offset: bytes before the file system.
    :param size: its bytes; 0 for all to the end of the file.
    :param also: a second folder, and the options for mounting the file system there, too.
    """
    # Not by mount(8), which refuses a second loop device for the same part of a file.
    read_only = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    device, node = _loop_device(file, target.parent, read_only=read_only, offset=offset, size=size)
    try:
        flags = MS_NODEV | (MS_RDONLY if read_only else 0)
        # By one device: btrfs refuses another one with the same file system.
        for folder, words in ((target, options), *([also] if also else [])):
            mount(str(node), str(folder), kind, flags, words)
    finally:
        # From here on the mount alone keeps the device.
        os.close(device)
        node.unlink()


def _loop_device(
    file: int, folder: Path, *, read_only: bool, offset: int, size: int
) -> tuple[int, Path]:
    """Set up a loop device (loop(4)); return its descriptor, and its node in a folder."""
    flags = _LO_FLAGS_AUTOCLEAR | (_LO_FLAGS_READ_ONLY if read_only else 0)
    # struct loop_config: the file, the block size, struct loop_info64, reserved.
    config = struct.pack("=II", file, 0)
    config += struct.pack("=5Q4I", 0, 0, 0, offset, size, 0, 0, 0, flags)
    config = config.ljust(_LOOP_CONFIG_BYTES, b"\0")
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(ATTEMPTS):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            # A node of our own: a container's /dev may have fewer of them than the host.
            node = folder / f"loop{number}"
            os.mknod(node, stat.S_IFBLK | 0o600, os.makedev(_LOOP_MAJOR, number))
            device = os.open(node, (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _LOOP_CONFIGURE, config)
            except OSError as error:
                os.close(device)
                node.unlink()
                # Another process was faster to take it.
                if error.errno != errno.EBUSY:
                    raise
                continue
            return device, node
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no loop device is free")


def idmapped(source: Path, target: Path, *, first: int) -> None:
    """Mount a folder once more, with its user and group ids moved.

    :param first: the host's id for 0.
    """
    namespace = _user_namespace(first)
    try:
        tree = libc.syscall(
            _SYS_OPEN_TREE,
            _AT_FDCWD,
            os.fsencode(source),
            ctypes.c_uint(_OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC),
        )
        checked(tree, "open_tree")
        try:
            wanted = _MountAttributes(_MOUNT_ATTR_IDMAP, 0, 0, namespace)
            checked(
                libc.syscall(
                    _SYS_MOUNT_SETATTR,
                    tree,
                    b"",
                    ctypes.c_uint(_AT_EMPTY_PATH),
                    ctypes.byref(wanted),
                    ctypes.c_size_t(ctypes.sizeof(wanted)),
                ),
                "mount_setattr with MOUNT_ATTR_IDMAP",
            )
            moved = libc.syscall(
                _SYS_MOVE_MOUNT,
                tree,
                b"",
                _AT_FDCWD,
                os.fsencode(target),
                ctypes.c_uint(_MOVE_MOUNT_F_EMPTY_PATH),
            )
            checked(moved, "move_mount")
        finally:
            os.close(tree)
    finally:
        os.close(namespace)


def _user_namespace(first: int) -> int:
    """Return a user namespace with :data:`IDS` ids, the first of which is this one outside."""
    ready, is_ready = os.pipe()
    done, is_done = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(is_done)
            checked(libc.unshare(CLONE_NEWUSER), "unshare of the user namespace")
            os.write(is_ready, b"x")
            # Until the parent has opened the namespace.
            os.read(done, 1)
            status = 0
        finally:
            os._exit(status)
    os.close(is_ready)
    os.close(done)
    try:
        if not os.read(ready, 1):
            raise PermissionError(1, "the host allows no user namespace")
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(f"0 {first} {IDS}")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready)
        os.close(is_done)
        os.waitpid(child, 0)


def system_in(folder: Path) -> str:
    """Return the place of the system in a file system: its top, or a subvolume's name.

    :raises OSError: when there is none.
    """
    for name in SUBVOLUMES:
        top = folder / name
        # A link of the image could lead anywhere on the host.
        if not top.is_symlink() and all(os.path.lexists(top / each) for each in ("etc", "usr")):
            return name
    # As the kernel says it of a damaged file system.
    words = 'there is no system with "/etc" and "/usr" in the root file system'
    raise OSError(errno.EUCLEAN, words)


def check_whole(system: Path) -> None:
    """Refuse a root file system whose system is partly on others.

    systemd mounts no devices in a container (systemd-fstab-generator(8)), and nothing would say
    that what is there is missing.

    :param system: where its top is mounted.
    :raises OSError: with a sentence.
    """
    table = system / "etc" / "fstab"
    # A link of the image could lead anywhere on the host.
    if table.parent.is_symlink() or table.is_symlink() or not table.is_file():
        return
    with table.open(errors="replace") as stream:
        lines = stream.read(MAX_TABLE).splitlines()
    for line in lines:
        source, place, _, options, *_ = [*line.split(), "", "", "", ""]
        mounted = not source.startswith("#") and "noauto" not in options.split(",")
        if mounted and place.rstrip("/") in OF_THE_SYSTEM:
            words = f'"{place}" is a mount of its own, and a container has the root alone'
            raise OSError(errno.EUCLEAN, words)
