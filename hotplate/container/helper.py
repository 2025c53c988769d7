"""The helper process of one container: its mounts, its network interfaces, the parent of nspawn.

Run by :class:`~hotplate.children.keeper.Keeper` as root; uses the standard library only, and ends
with the harness. Its mount namespace and its network namespace are its own: mounts, loop devices
and interfaces go with it, however it ends. Only control groups need to be removed, which it does
at its end; groups left by a killed helper are removed by the next one.

Source: systemd-nspawn(1) of systemd 252 and later, sd_notify(3), ip-link(8).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from hotplate.children import mounts, reaper
from hotplate.children.reaper import CLONE_NEWNET, checked, libc
from hotplate.container.cgroups import ControlGroups
from hotplate.network import links

CLONE_NEWNS = 0x00020000
#: nspawn keeps locks and sockets here, by the name of the machine.
NSPAWN_STATE = "/run/systemd/nspawn"
#: Name prefix of our end of an interface.
OUTER = "hp"


class ContainerHelper(reaper.Reaper):
    """Answers the harness, mounts a container's root, and starts nspawn in it."""

    def __init__(self, control: socket.socket, harness: int) -> None:
        super().__init__(control, harness)
        self.groups: ControlGroups | None = None
        self.place = Path()
        self.ip = ""
        self.interfaces: set[int] = set()

    def do_open(
        self,
        *,
        place: str,
        ip: str,
        file_system: str,
        options: str,
        offset: int,
        size: int,
        layer_bytes: int,
        first_id: int,
        memory_mib: int,
        processes: int,
    ) -> str:
        """Mount the root of the container, and make its control groups.

        The descriptors of the request are those of the image's raw disk, of the layer's file, and
        of JSON with two maps: ``files``, base64 by path, for a folder that the container sees,
        where a value that begins with ``->`` is the target of a link; and ``seeds``, base64 by path
        in the container, for files of its own.

        :param place: a folder of the host; everything is mounted there, in our namespace only.
        :param options: of the image's file system, without those of all file systems.
        :param offset: bytes of the disk before it.
        :param size: its bytes.
        :param layer_bytes: the size of the layer that takes all changes; 0 for an existing one.
        :param first_id: the host's user and group id of the container's root.
        :param processes: the limit of its processes and threads.
        :return: why memory and processes are not bounded; "" when they are.
        """
        image, layer, lists = self.received
        self.ip = ip
        checked(libc.unshare(CLONE_NEWNS | CLONE_NEWNET), "unshare of mounts and network")
        mounts.keep_private()
        # With a writable /sys nspawn waits for udev, which knows nothing of this namespace.
        mounts.mount("none", "/sys", flags=mounts.MS_REMOUNT | mounts.MS_BIND | mounts.MS_RDONLY)
        Path(NSPAWN_STATE).mkdir(parents=True, exist_ok=True)
        mounts.mount("hotplate", NSPAWN_STATE, "tmpfs", options="mode=700")
        self.place = Path(place)
        mounts.mount("hotplate", place, "tmpfs", options="mode=755,size=64m")
        for name in ("image", "lower", "layer", "root", "files"):
            (self.place / name).mkdir()
        if layer_bytes:
            # No journal: a layer that was not unmounted is thrown away.
            mounts.run(
                "mkfs.ext4",
                *("-q", "-F", "-m", "0", "-O", "^has_journal,^resize_inode"),
                *("-E", "lazy_itable_init=1,nodiscard", f"/proc/{os.getpid()}/fd/{layer}"),
            )
        mounts.loop(
            image,
            self.place / "image",
            kind=file_system,
            options=options,
            offset=offset,
            size=size,
        )
        mounts.idmapped(self.place / "image", self.place / "lower", first=first_id)
        mounts.loop(layer, self.place / "layer", kind="ext4")
        self._mount_root(first_id)
        links.prepare(ip)
        self.groups = ControlGroups.make(memory_mib=memory_mib, processes=processes)
        # Not in the request itself, which is one message of limited size.
        with open(lists, "rb", closefd=False) as stream:
            written = json.load(stream)
        self._write(written["files"], first_id)
        for path, text in written["seeds"].items():
            write_in(self.place / "root", path, base64.b64decode(text), owner=first_id)
        return self.groups.unbounded

    def _mount_root(self, first_id: int) -> None:
        upper, work = (self.place / "layer" / name for name in ("changes", "work"))
        for folder in (upper, work):
            folder.mkdir(exist_ok=True)
        system = mounts.system_in(self.place / "image")
        mounts.check_whole(self.place / "image" / system)
        top = (self.place / "image" / system).stat()
        os.chown(upper, first_id, first_id)
        upper.chmod(stat.S_IMODE(top.st_mode))
        # A layer that was mounted as volatile is refused otherwise (overlayfs.rst).
        marker = work / "work" / "incompat"
        if marker.exists():
            mounts.run("rm", "-rf", str(marker))
        folders = {
            "lowerdir": self.place / "lower" / system,
            "upperdir": upper,
            "workdir": work,
        }
        # volatile: the guest's fsync() costs nothing, as with QEMU's cache=unsafe.
        options = ",".join([*(f"{name}={path}" for name, path in folders.items()), "volatile"])
        # A device node of the image that everybody may use would be the host's device. The guest
        # cannot lift it: its mount namespace belongs to another user namespace.
        root = str(self.place / "root")
        mounts.mount("overlay", root, "overlay", mounts.MS_NODEV, options)

    def _write(self, files: Mapping[str, str], first_id: int) -> None:
        for name, text in files.items():
            path = self.place / "files" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("->"):
                path.symlink_to(text[2:])
            else:
                data = base64.b64decode(text)
                path.write_bytes(data)
                if data.startswith(b"#!"):
                    path.chmod(0o755)
        # It has the nonce, which no other user of the guest may read; the units have nothing, and
        # systemd complains about those that not everybody can read.
        shell = self.place / "files" / "shell"
        os.chown(shell, first_id, first_id)
        shell.chmod(0o600)

    def do_interface(self, *, number: int, name: str, mac: str, pid: int) -> None:
        """Make a network interface; hand out the socket on which its frames come and go.

        :param name: in the container.
        :param pid: a process of a running container that gets it; 0 for one that is to be started.
        """
        outer = f"{OUTER}{number}"
        links.add_of_container(self.ip, name, outer, mac=mac)
        try:
            tap = links.tap(outer)
            if pid:
                links.run(self.ip, [f"link set dev {name} netns {pid}"])
        except OSError:
            links.run(self.ip, [f"link delete dev {outer}"])
            raise
        self.interfaces.add(number)
        self.handed_out.append(tap.detach())

    def do_remove_interface(self, *, number: int) -> None:
        """Remove an interface from the container."""
        self.interfaces.discard(number)
        links.run(self.ip, [f"link delete dev {OUTER}{number}"])

    def do_link(self, *, number: int, up: bool) -> None:
        """Plug an interface's cable in or out."""
        links.run(self.ip, [f"link set dev {OUTER}{number} {'up' if up else 'down'}"])

    def do_quick_addresses(self, *, pid: int) -> None:
        """Let a container use IPv6 addresses at once, without asking for others that have them.

        Nobody else can have them: its networks drop frames with another port's addresses.

        :param pid: the guest's init.
        """
        mounts.run(
            *("nsenter", f"--net=/proc/{pid}/ns/net", "--", "sh", "-c"),
            'for each in /proc/sys/net/ipv6/conf/*/accept_dad; do echo 0 >"$each"; done',
        )

    def do_sockets(self) -> None:
        """Hand out the listener of the guest's shell, and nspawn's notify socket."""
        for name, kind in (("shell", socket.SOCK_STREAM), ("notify", socket.SOCK_DGRAM)):
            path = self.place / name
            path.unlink(missing_ok=True)
            made = socket.socket(socket.AF_UNIX, kind)
            made.bind(str(path))
            if kind == socket.SOCK_STREAM:
                made.listen(16)
            self.handed_out.append(made.detach())

    def do_connect_shell(self) -> None:
        """Hand out a connection to the listener of the guest's shell."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            # Answered by the kernel; the guest's init accepts it when it is ready.
            connection.connect(str(self.place / "shell"))
            self.handed_out.append(os.dup(connection.fileno()))

    def do_entrances(self) -> list[str]:
        """Return the files by which a process enters the control groups."""
        return self._groups().entrances

    def do_processes(self) -> list[int]:
        """Return the processes of the container."""
        return self._groups().processes()

    def do_memory(self) -> int:
        """Return the bytes of memory that the container uses."""
        return self._groups().memory_bytes()

    def do_freeze(self, *, frozen: bool) -> None:
        """Stop the processes of the container, or let them run again."""
        self._groups().freeze(frozen=frozen)

    def do_end(self) -> None:
        """End all processes of the container, and remove its interfaces."""
        self._groups().end()
        for number in self.interfaces:
            # They have gone with the container's namespace, unless nspawn moved them back here.
            with contextlib.suppress(OSError):
                links.run(self.ip, [f"link delete dev {OUTER}{number}"])
        self.interfaces.clear()

    def _groups(self) -> ControlGroups:
        if self.groups is None:
            raise OSError(22, "the container is not open")
        return self.groups

    def end_children(self) -> None:
        """See :meth:`~hotplate.children.reaper.Reaper.end_children`; removes the groups too."""
        super().end_children()
        if self.groups is not None:
            with contextlib.suppress(OSError):
                self.groups.end()
            self.groups.remove()


def write_in(root: Path, name: str, data: bytes, *, owner: int) -> None:
    """Write a file of a root file system, with the folders to it; only its owner can read it.

    nspawn would make folders that nobody in the container owns, in which cloud-init cannot write.

    :param root: where it is mounted.
    :param name: the file's path in it.
    :param owner: the host's id of the user and group.
    :raises OSError: when a folder is a link, which could lead anywhere on the host.
    """
    path = root
    *folders, last = Path(name).relative_to("/").parts
    for each in folders:
        path /= each
        if path.is_symlink():
            raise OSError(40, f'"/{path.relative_to(root)}" is a link in the image')
        if not path.exists():
            path.mkdir(mode=0o755)
            os.chown(path, owner, owner)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with open(os.open(path / last, flags, 0o600), "wb") as stream:  # noqa: PTH123
        os.fchown(stream.fileno(), owner, owner)
        stream.write(data)


def main(words: list[str]) -> None:
    """See :func:`hotplate.children.reaper.main`."""
    reaper.main(words, ContainerHelper)
