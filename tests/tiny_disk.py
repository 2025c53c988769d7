"""The smallest disk that counts as bootable, which no test boots, and disks with partitions."""

from __future__ import annotations

import io
import os
import struct
import subprocess
from pathlib import Path

SECTOR = 512
MIB = 1 << 20
SYSTEM = {**os.environ, "PATH": f"/usr/sbin:/sbin:{os.environ['PATH']}", "MTOOLS_SKIP_CHECK": "1"}


def make(path: Path) -> Path:
    """Write a raw disk with a partition table and boot code that stops the processor."""
    disk = bytearray(2048 * SECTOR)
    disk[0:3] = b"\xfa\xf4\xfd"  # cli; hlt
    # One active partition of type Linux, from sector 1 on.
    disk[446:462] = struct.pack("<B3sB3sII", 0x80, b"\0\2\0", 0x83, b"\xff" * 3, 1, 2047)
    disk[510:512] = b"\x55\xaa"
    path.write_bytes(disk)
    return path


def partitioned(path: Path, *parts: tuple[str, Path | bytes], label: str = "gpt") -> Path:
    """Make a raw disk with a partition for each type and its content, by sfdisk."""
    at, rows = 1, [f"label: {label}"]
    with path.open("wb") as disk:
        for kind, content in parts:
            start = at
            with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as source:
                while block := source.read(MIB):
                    # Zeros are left out: some contents are large.
                    if block.count(0) < len(block):
                        disk.seek(at * MIB)
                        disk.write(block)
                    at += 1
            rows.append(f"start={start}MiB, size={at - start}MiB, type={kind}")
        disk.truncate((at + 1) * MIB)
    run("sfdisk", "-q", path, stdin="\n".join(rows))
    return path


def fat(tree: Path, path: Path, *options: str, mib: int = 8) -> Path:
    """Make a FAT file system with the files of a folder."""
    path.touch()
    os.truncate(path, mib * MIB)
    run("mkfs.vfat", *options, path)
    run("mcopy", "-s", "-i", path, *tree.iterdir(), "::")
    return path


def run(*words: object, stdin: str = "") -> str:
    """Run a command of this host's administrator, and return what it prints."""
    command = [str(each) for each in words]
    done = subprocess.run(command, env=SYSTEM, input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
