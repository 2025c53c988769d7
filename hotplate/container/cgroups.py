"""A control group of our own around each container: it bounds, freezes and ends all in it.

Both versions of control groups are used where the host has both, as in a container of Docker or
Podman. Uses the standard library only. Source: the kernel's ``cgroup-v2.rst`` and
``cgroup-v1/``.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

#: The beginning of the groups' names; the helper's process namespace and its id there follow.
PREFIX = "hotplate-"
#: The controllers of version 1 that a container needs a group of its own for; the last is
#: systemd's hierarchy.
_VERSION_1 = ("memory", "pids", "freezer", "cpuacct", "name=systemd")
SECONDS = 10.0
REMOVE_SECONDS = 2.0


class ControlGroups:
    """The control groups of one container, by controller; made by :meth:`make`.

    :ivar unbounded: why memory and processes are not bounded; "" when they are.
    """

    def __init__(self, unified: Path | None, version_1: dict[str, Path]) -> None:
        self.unified = unified
        self.version_1 = version_1
        self.unbounded = ""

    @classmethod
    def make(cls, *, memory_mib: int, processes: int) -> ControlGroups:
        """Make groups below this process's own, with bounds.

        :param processes: the limit of its processes and threads.
        :raises OSError: when the host allows none.
        """
        name = name_of(os.getpid())
        own = _own()
        sweep(own)
        made: dict[str, Path] = {}
        for controller in ("", *_VERSION_1):
            if controller in own:
                made[controller] = own[controller] / name
                made[controller].mkdir()
        groups = cls(made.pop("", None), made)
        try:
            groups._bound(own, memory_mib=memory_mib, processes=processes)
        except KeyError as error:
            groups.unbounded = f"the host has no control groups for {error.args[0]}"
        except OSError as error:
            # A group with processes, such as a session of systemd, gives no controllers.
            groups.unbounded = f"the host's control groups refuse it: {error.strerror}"
        return groups

    def _bound(self, own: dict[str, Path], *, memory_mib: int, processes: int) -> None:
        if self.unified is not None and not {"memory", "pids"} <= {*self.version_1}:
            # Fails with EBUSY where processes are in our group, unless it is the host's root.
            (own[""] / "cgroup.subtree_control").write_text("+memory +pids")
            (self.unified / "memory.max").write_text(f"{memory_mib}M")
            with contextlib.suppress(OSError):
                (self.unified / "memory.swap.max").write_text("0")
            (self.unified / "pids.max").write_text(str(processes))
            return
        (self.version_1["memory"] / "memory.limit_in_bytes").write_text(f"{memory_mib}M")
        (self.version_1["pids"] / "pids.max").write_text(str(processes))

    @property
    def entrances(self) -> list[str]:
        """Return the files to which a process writes its id to enter the groups."""
        folders = [self.unified, *self.version_1.values()]
        return [str(each / "cgroup.procs") for each in folders if each is not None]

    def processes(self) -> list[int]:
        """Return the processes in the groups."""
        found: set[int] = set()
        for top in (self.unified, *self.version_1.values()):
            for folder in _below(top) if top is not None else ():
                with contextlib.suppress(OSError):
                    found.update(map(int, (folder / "cgroup.procs").read_text().split()))
        return sorted(found)

    def freeze(self, *, frozen: bool) -> None:
        """Stop all processes in the groups, or let them run again."""
        if (freezer := self.version_1.get("freezer")) is not None:
            (freezer / "freezer.state").write_text("FROZEN" if frozen else "THAWED")
        elif self.unified is not None:
            (self.unified / "cgroup.freeze").write_text(str(int(frozen)))

    def memory_bytes(self) -> int:
        """Return the memory that the groups use, without the cache of files; 0 when unknown."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            if (folder := self.version_1.get("memory")) is not None:
                return _rows(folder / "memory.stat")["total_rss"]
            if self.unified is not None:
                return _rows(self.unified / "memory.stat")["anon"]
        return 0

    def end(self) -> None:
        """Kill all processes in the groups, and wait until they are gone.

        :raises TimeoutError: when one stays, as one that waits for a device may.
        """
        with contextlib.suppress(OSError):
            self.freeze(frozen=False)
        # Not by cgroup.kill: from then on, Linux 6.18 kills each process that systemd 257 starts
        # right in a group below (CLONE_INTO_CGROUP), also at the next boot of the guest. All
        # processes of the guest have gone with nspawn, but for one that is being started.
        until = time.monotonic() + SECONDS
        while waited_for := self.processes():
            for pid in waited_for:
                self._kill(pid, until)
            if time.monotonic() > until:
                raise TimeoutError(110, f"the process {waited_for[0]} does not end")

    def _kill(self, pid: int, until: float) -> None:
        """Kill a process, and wait until it has ended."""
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            # It has ended meanwhile.
            return
        try:
            # Looked at again, so that the handle is not of a later process with its number.
            if pid not in self.processes():
                return
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            ended = select.poll()
            ended.register(handle, select.POLLIN)
            ended.poll(max(0.0, until - time.monotonic()) * 1000)
        finally:
            os.close(handle)

    def remove(self) -> None:
        """Remove the groups; kill a process that has entered them since :meth:`end`.

        unshare(1) may be killed before its child has asked to be killed with it.  Once the first
        group is gone, such a child cannot enter, and ends.
        """
        until = time.monotonic() + REMOVE_SECONDS
        for top in (self.unified, *self.version_1.values()):
            while top is not None and top.exists():
                for pid in self.processes():
                    self._kill(pid, until)
                _remove(top)
                # The kernel takes a process that has just ended out of its group a moment later.
                if time.monotonic() > until:
                    break
                time.sleep(0.005)


def name_of(helper: int) -> str:
    """Return the name of the groups of a helper in this process namespace."""
    return f"{_prefix()}{helper}"


def _prefix() -> str:
    return f"{PREFIX}{Path('/proc/self/ns/pid').stat().st_ino}-"


def sweep(own: dict[str, Path]) -> None:
    """Kill the processes in the groups of helpers that were killed, and remove these groups.

    Only helpers of this process namespace: whether another one's still runs is not seen here.

    :param own: this process's groups by controller.
    """
    for folder in own.values():
        for left in folder.glob(f"{_prefix()}*"):
            helper = left.name.removeprefix(_prefix())
            if helper.isdigit() and not Path(f"/proc/{helper}").exists():
                ControlGroups(None, {"": left}).remove()


def _own() -> dict[str, Path]:
    """Return this process's groups by controller of version 1; version 2 is ""."""
    mounts: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words, _, more = line.partition(" - ")
        kind, _, options = more.split(" ", 2)
        place = Path(words.split(" ")[4])
        if kind == "cgroup2":
            mounts.setdefault("", place)
        elif kind == "cgroup":
            for option in options.split(","):
                mounts.setdefault(option, place)
    own = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            if controller in mounts:
                folder = mounts[controller] / path.lstrip("/")
                # In a container without a namespace of its own, the path is the host's.
                own[controller] = folder if folder.is_dir() else mounts[controller]
    return own


def _below(top: Path) -> Iterator[Path]:
    """Yield a group and all groups in it, the innermost first."""
    with contextlib.suppress(OSError):
        for each in top.iterdir():
            if each.is_dir():
                yield from _below(each)
        yield top


def _remove(top: Path) -> None:
    for folder in list(_below(top)):
        with contextlib.suppress(OSError):
            folder.rmdir()


def _rows(path: Path) -> dict[str, int]:
    rows = (line.split() for line in path.read_text().splitlines())
    return {name: int(value) for name, value in rows}
