"""Run one command as root so that nothing of it outlives it: no process, mount, loop or file.

A program of its own, with the standard library only: ``hotplate build`` starts it (through sudo
when needed) and holds the other end of its standard input, which is the lifeline. When that
closes, because the build was interrupted or its process was killed, everything ends here.

The command runs in a process-id namespace, whose end kills all processes in it, and in a mount
namespace, which removes every mount with it. Loop devices belong to no namespace; they are found
by their backing file, whose directory has a unique name. If this program itself is killed, the
next one removes its leftovers.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PREFIX = "hotplate-build-"
STAGING = ".hotplate-"
STATE = "state.json"
LOCK = "lock"
NAMESPACES = ("unshare", "--mount-proc", "--pid", "--fork", "--kill-child")
#: Exit status when the lifeline closed before the command had ended.
LOST = 125
#: Limit of the release of a build's loop devices.
DETACH_SECONDS = 10.0


def loops_of(name: str) -> list[str]:
    """Return the loop devices whose backing file is in a directory called ``name``.

    The kernel writes the visible part of the path: of a file on an unmounted tmpfs it is the part
    below that mount, which still contains the directory's name.
    """
    names = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if f"/{name}/" in backing.read_text():
                names.append("/dev/" + backing.parent.parent.name)
    return sorted(names)


def detach_loops(name: str) -> list[str]:
    """Detach them all; return those that were still attached at the time limit."""
    end = time.monotonic() + DETACH_SECONDS
    while (loops := loops_of(name)) and time.monotonic() < end:
        for loop in loops:
            subprocess.run(["losetup", "--detach", loop], capture_output=True)
        if loops_of(name):
            # The mounts of a namespace are released a moment after its end.
            time.sleep(0.05)
    return loops


def discard(work: Path) -> None:
    """Remove a build's directory, its loop devices and its unfinished output."""
    detach_loops(work.name)
    # Only when it is a mount point, see _keep_mounts().
    subprocess.run(["umount", "--lazy", work], capture_output=True)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        staging = Path(json.loads((work / STATE).read_text())["staging"])
        if STAGING in staging.name:
            shutil.rmtree(staging, ignore_errors=True)
    shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def locked(work: Path) -> Iterator[bool]:
    """Hold the lock of a build's directory; yield False when its build is alive and holds it."""
    descriptor = os.open(work / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(descriptor)


def sweep(base: Path) -> list[Path]:
    """Remove the leftovers of dead builds under ``base``; return their directories."""
    swept = []
    for work in sorted(base.glob(PREFIX + "*")):
        # Take only root's own directories, or a stranger could have root remove any directory.
        with contextlib.suppress(OSError):
            if work.is_symlink() or not work.is_dir() or work.stat().st_uid != os.geteuid():
                continue
            with locked(work) as free:
                if free and (work / STATE).exists():
                    discard(work)
                    swept.append(work)
    return swept


def _end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends (``prctl(PR_SET_PDEATHSIG)``)."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def _keep_mounts(work: Path) -> list[str]:
    """Keep all mounts inside this namespace; return the command that makes the next ones.

    In a chroot whose root directory is no mount point, the propagation of all mounts cannot be
    changed at once. There it is enough that everything is mounted below one private mount.
    """
    everything = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True)
    if everything.returncode == 0:
        return [*NAMESPACES, "--"]
    subprocess.run(["mount", "--bind", work, work], check=True)
    subprocess.run(["mount", "--make-rprivate", work], check=True)
    return [*NAMESPACES, "--propagation", "unchanged", "--"]


def _wait(child: subprocess.Popen[bytes], lifeline: int) -> bool:
    """Wait until the child has ended (True) or the lifeline has closed (False)."""
    ended = os.pidfd_open(child.pid)
    try:
        while True:
            ready, _, _ = select.select([ended, lifeline], [], [])
            if ended in ready:
                return True
            if not os.read(lifeline, 4096):
                return False
    finally:
        os.close(ended)


def outer(config: dict[str, Any], lifeline: int) -> int:
    """Prepare the work directory, run :func:`inner` in its namespaces, and clean up after it."""
    work = Path(config["work"])
    sweep(work.parent)
    work.mkdir(mode=0o755)
    with locked(work):
        (work / STATE).write_text(json.dumps({"staging": config["staging"]}))
        namespaces = _keep_mounts(work)
        tmp = work / "tmp"
        tmp.mkdir()
        if config["tmpfs_mib"]:
            options = f"size={config['tmpfs_mib']}m,mode=0755"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "hotplate", tmp], check=True)
        scratch = tmp / work.name
        scratch.mkdir()
        os.chown(scratch, config["uid"], config["gid"])
        child = subprocess.Popen(
            [*namespaces, sys.executable, "-I", __file__, "--inner"],
            stdin=subprocess.PIPE,
            preexec_fn=_end_with_parent,
        )
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                child.stdin.write(json.dumps(config | {"scratch": str(scratch)}).encode())
                child.stdin.close()
            ended = _wait(child, lifeline)
        finally:
            child.kill()
            status = child.wait()
        for loop in detach_loops(work.name):
            with contextlib.suppress(OSError):
                print(f"hotplate: {loop} is still in use and was not detached", flush=True)
        if config["tmpfs_mib"]:
            subprocess.run(["umount", "--lazy", tmp])
        if not ended or status != 0:
            discard(work)
            return status if ended else LOST
        # The finished output belongs to the caller from here on.
        (work / STATE).write_text("{}")
        discard(work)
    return 0


def inner(config: dict[str, Any]) -> int:
    """Run the command as its user, as process 1 of the namespace, and reap orphans."""
    environment = dict(config["environment"], TMPDIR=config["scratch"], TMP_DIR=config["scratch"])
    user: dict[str, Any] = {}
    if config["uid"] != 0:
        name = pwd.getpwuid(config["uid"]).pw_name
        groups = os.getgrouplist(name, config["gid"])
        user = {"user": config["uid"], "group": config["gid"], "extra_groups": groups}
    child = subprocess.Popen(
        config["argv"],
        env=environment,
        cwd=config["staging"],
        stdin=subprocess.DEVNULL,
        **user,
    )
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status)


def main() -> int:
    """Run the build described on standard input, and return its exit status."""
    lifeline = sys.stdin.fileno()
    # The caller's own would be that of the image's files, and close this directory to its user.
    os.umask(0o022)
    if "--inner" in sys.argv:
        with os.fdopen(lifeline, closefd=False) as given:
            return abs(inner(json.load(given)))
    # The terminal's signals are for the holder of the lifeline, which decides whether to end this.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # A handler and not SIG_IGN, which the command would inherit.
        signal.signal(number, lambda *_: None)
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(lifeline, 1)
        if not byte:
            return LOST
        line += byte
    return outer(json.loads(line), lifeline)


if __name__ == "__main__":
    sys.exit(main())
