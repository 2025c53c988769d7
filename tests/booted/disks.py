"""Mount an image's root file system, to plant faults in it or to run its tools."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path


def root_offset(disk: Path) -> int:
    """Return the offset of the largest partition, in bytes."""
    done = subprocess.run(["sfdisk", "--json", disk], check=True, capture_output=True)
    partitions = json.loads(done.stdout)["partitiontable"]["partitions"]
    return max(partitions, key=lambda each: each["size"])["start"] * 512


@contextlib.contextmanager
def mounted(disk: Path, offset: int, where: Path) -> Iterator[Path]:
    """Mount the file system at that offset of a raw disk, in bytes."""
    where.mkdir()
    subprocess.run(["mount", "-o", f"loop,offset={offset}", disk, where], check=True)
    try:
        yield where
    finally:
        # A mount namespace that was made meanwhile has a copy of the mount, and keeps the file
        # system mounted after this one is gone: read-only, it has nothing left to write.
        subprocess.run(["mount", "-o", "remount,ro", where], check=True)
        subprocess.run(["umount", where], check=True)


def planted(image: Path, disk: Path, plant: str) -> Path:
    """Copy an image to a raw disk, run shell commands in its root directory, return the copy."""
    subprocess.run(["qemu-img", "convert", "-O", "raw", image, disk], check=True)
    for suffix in (".vmlinuz", ".initrd"):
        if (beside := image.with_suffix(suffix)).exists():
            shutil.copy(beside, disk.with_suffix(suffix))
    # With a kernel beside it, the image is one file system.
    offset = 0 if image.with_suffix(".vmlinuz").exists() else root_offset(disk)
    with mounted(disk, offset, disk.with_name("root")) as root:
        subprocess.run(["sh", "-c", plant], cwd=root, check=True)
    return disk


def in_root(root: Path, *command: str, stdin: str, seconds: float) -> str:
    """Run a program of the image as root, without a network, and return its output.

    Network settings in ``/proc/sys`` are its own namespace's; ``vm.swappiness`` is masked.

    :raises subprocess.CalledProcessError: when it fails.
    """
    scratch = (
        "mount -t proc proc proc; for d in run tmp; do mount -t tmpfs none $d; done; "
        "echo 60 >run/covered; mount --bind run/covered proc/sys/vm/swappiness"
    )
    done = subprocess.run(
        [
            *("unshare", "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child"),
            *("sh", "-euc", f'{scratch}; exec chroot . "$@"', "sh", *command),
        ],
        cwd=root,
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME": "/root"},
        input=stdin,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=True,
    )
    return done.stdout
