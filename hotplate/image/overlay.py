"""Writable disk of a machine, over an image that stays unchanged."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from hotplate.errors import HostError
from hotplate.host_tools import find_tool

#: Free bytes needed for a guest to start; its own output needs more.
SPARE = 64 * 1024 * 1024


ADDRESS_SPACE = 1 << 30
#: Limit of ``qemu-img``: an odd image can make it use any amount (CVE-2015-5162).
CPU_SECONDS = 300


def bounded(program: str) -> list[str]:
    """Return the command line of a program of QEMU, with bounded memory and processor time."""
    # prlimit is from util-linux, which every Debian has; a preexec_fn is unsafe in processes with
    # threads.
    prlimit = shutil.which("prlimit")
    limits = [prlimit, f"--as={ADDRESS_SPACE}", f"--cpu={CPU_SECONDS}"] if prlimit else []
    # glibc reserves 64 MB or more of addresses for each thread (mallopt(3)), and a thread without
    # space for its stack is not started.
    limits += ["env", "MALLOC_ARENA_MAX=1"] if prlimit else []
    return [*limits, program]


def qemu_img(*arguments: str, pass_fds: Sequence[int] = ()) -> subprocess.CompletedProcess[bytes]:
    """Run ``qemu-img`` with bounded memory and processor time.

    :param pass_fds: the descriptors that it inherits.
    :raises HostError: it is not installed.
    """
    command = [*bounded(find_tool("qemu-img")), *arguments]
    return subprocess.run(command, capture_output=True, pass_fds=pass_fds)


def last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return the last line of a failed program's error output, for an error message."""
    lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
    return lines[-1].strip()


def make_overlay(image: Path, image_format: str, overlay: Path, *, gib: int = 0) -> Path:
    """Make a qcow2 overlay; it exists whole or not at all.

    :param image: the backing file, which the overlay names by its absolute path.
    :param image_format: as QEMU names it; recorded, so that no reader guesses it later.
    :param gib: its size in GiB; 0 for that of the image.
    :raises HostError: no space, no right, or no ``qemu-img``.
    """
    directory = overlay.parent
    try:
        directory.mkdir(parents=True, exist_ok=True)
        check_space(directory)
    except OSError as error:
        raise _host_error(directory, error) from error
    temporary = overlay.with_name(f".{overlay.name}.{os.getpid()}")
    try:
        done = qemu_img(
            *("create", "-q", "-f", "qcow2", "-F", image_format),
            *("-b", str(image.resolve()), str(temporary), *([f"{gib}G"] if gib else [])),
        )
        if done.returncode != 0:
            raise HostError(
                f'no disk could be made in "{directory}": {last_words(done)}',
                hint=f"df -h {shlex.quote(str(directory))}",
            )
        temporary.replace(overlay)
    except OSError as error:
        raise _host_error(directory, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return overlay


def check_space(*directories: Path, needed: int = SPARE) -> None:
    """Refuse to start on a full disk.

    :param directories: on one disk.
    :param needed: bytes.
    :raises HostError: fewer are free.
    """
    free = shutil.disk_usage(directories[0]).free
    if free < needed:
        named = " and ".join(f'"{each}"' for each in directories)
        raise HostError(
            f"there are only {free // 1_000_000} MB free in {named}; "
            f"at least {needed // 1_000_000} MB are needed",
            hint="free some space, or choose another directory: "
            f"df -h {shlex.quote(str(directories[0]))}",
        )


def _host_error(directory: Path, error: OSError) -> HostError:
    if error.errno == errno.ENOSPC:
        return HostError(
            f'there is no space left on the disk of "{directory}"',
            hint=f"df -h {shlex.quote(str(directory))}",
        )
    return HostError(f'"{directory}" cannot be written to: {error.strerror}')
