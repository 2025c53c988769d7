"""Limit of the machines that run at once on this host: by memory, across processes.

Every machine reserves the memory that it will use, and waits when too little is left. A
reservation is a locked file, so that the kernel releases it however its owner ends, and none is
ever stale. Waiting processes form a queue, so that small machines do not starve a large one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from hotplate.errors import HostError
from hotplate.host_tools import memory_mib
from hotplate.timing.deadline import Deadline, DeadlineExceeded, HostTooSlow, retry

#: The part of the host's memory that all machines together may use.
SHARE = 0.8

#: QEMU's memory in addition to the guest's: under TCG mostly translated code, as measured.
OVERHEAD_MIB = 400

POLL_SECONDS = 0.2

#: The file that is locked by the process served next.
QUEUE = "queue"


#: The limit of the container around us (cgroup v2): the root has no such file, and a group without
#: a limit has the word "max".
CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")

OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


def host_mib() -> int:
    """Return the total memory in MiB of this host, or of the container around us."""
    limit = memory_mib("MemTotal")
    with contextlib.suppress(OSError, ValueError):
        limit = min(limit, int(CONTAINER_LIMIT.read_text()) >> 20)
    return limit


def max_mib() -> int | None:
    """Return the MiB that one process can ask this host for; None when unknown.

    With overcommit set to always, Linux grants any amount, and a sandbox may hide the setting.
    Source: Linux' Documentation/mm/overcommit-accounting.rst.
    """
    try:
        always = OVERCOMMIT.read_text().strip() == "1"
    except OSError:
        return None
    return None if always else memory_mib("MemTotal", "SwapTotal")


@contextlib.contextmanager
def reserve(
    memory_mib: int,
    *,
    directory: Path,
    deadline: Deadline,
    waiting: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Reserve memory for one machine as long as the context lasts; wait until there is enough.

    A machine that is alone is admitted if the host can grant its memory at all: it may swap, but
    nothing waits for ever. A machine too large for the host is refused at once, as all others
    would wait behind it.

    :param memory_mib: the guest's memory.
    :param directory: shared by all processes on this host that count each other's machines.
    :param waiting: called once, with a sentence, when there is not enough.
    :raises HostTooSlow: when there is not enough in time.
    :raises HostError: when the host has less than that, or the directory cannot be used.
    """
    limit = max_mib()
    if limit is not None and memory_mib > limit:
        raise HostError(
            f"a machine of {memory_mib} MiB is more than the {limit} MiB that this host has,"
            " memory and swap",
            hint="--memory MIB",
        )
    budget = int(host_mib() * SHARE)
    need = memory_mib + OVERHEAD_MIB
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        queue = os.open(directory / QUEUE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HostError(
            f'memory cannot be reserved in "{directory}": {error.strerror}',
            hint=f"ls -ld {shlex.quote(str(directory))}",
        ) from error
    announced = False

    def announce(why: str) -> None:
        nonlocal announced
        if not announced:
            announced = True
            waiting(f"waiting for memory: {why}")

    def first_in_the_queue(_: bool) -> bool:
        try:
            # flock(2) has no timeout: it is tried until the deadline.
            fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            announce("other machines wait too, and come before this one")
            return False
        return True

    def admitted(_: bool) -> int | None:
        used = live_reservations(directory)
        if not used or sum(used) + need <= budget:
            return _hold(directory, need)
        announce(
            f"{len(used)} machines hold {sum(used)} of {budget} MiB, and {need} MiB are needed"
        )
        return None

    try:
        retry(first_in_the_queue, deadline, every=POLL_SECONDS)
        descriptor = retry(admitted, deadline, every=POLL_SECONDS)
    except DeadlineExceeded as error:
        used = sum(live_reservations(directory))
        raise HostTooSlow(f"{error}: the running machines hold {used} of {budget} MiB") from None
    finally:
        # Releases the queue to the next process, also while this machine runs.
        os.close(queue)
    try:
        yield
    finally:
        os.close(descriptor)


def live_reservations(directory: Path) -> list[int]:
    """Remove reservations whose owner is gone; return the MiB of the others."""
    alive = []
    for path in directory.glob("*.mib"):
        # Another process may remove it meanwhile.
        with contextlib.suppress(OSError, ValueError), path.open("r+") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                alive.append(int(stream.read()))
            else:
                # We got its lock, so its owner has ended.
                path.unlink()
    return alive


def _hold(directory: Path, mib: int) -> int:
    """Make and lock a reservation; return the descriptor that keeps it."""
    descriptor, name = tempfile.mkstemp(dir=directory, suffix=".new")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, str(mib).encode())
    # Others may see it only now that it is locked and written.
    Path(name).rename(Path(name).with_suffix(".mib"))
    return descriptor
