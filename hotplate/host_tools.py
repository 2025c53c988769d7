"""The programs that hotplate runs on this host, their Debian packages, and the host's memory."""

from __future__ import annotations

import shutil
from pathlib import Path

from hotplate.errors import HostError

MEMINFO = Path("/proc/meminfo")

#: The Debian package of each program.
PACKAGES = {
    "cryptsetup": "cryptsetup-bin",
    "debootstrap": "debootstrap",
    "dnsmasq": "dnsmasq-base",
    "dmsetup": "dmsetup",
    "fstrim": "util-linux",
    "ip": "iproute2",
    "kpartx": "kpartx",
    "losetup": "util-linux",
    "lvm": "lvm2",
    "mcopy": "mtools",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.vfat": "dosfstools",
    "mmdebstrap": "mmdebstrap",
    "qemu-img": "qemu-utils",
    "qemu-nbd": "qemu-utils",
    "qemu-system-aarch64": "qemu-system-arm",
    "qemu-system-x86_64": "qemu-system-x86",
    "rpm": "rpm",
    "sfdisk": "fdisk",
    "sgdisk": "gdisk",
    "socat": "socat",
    "ssh": "openssh-client",
    "sudo": "sudo",
    "swtpm": "swtpm",
    "systemd-nspawn": "systemd-container",
    "unshare": "util-linux",
    "xorriso": "xorriso",
}


def package_of(name: str) -> str:
    """Return the Debian package of a program; its own name when none is known."""
    return PACKAGES.get(name, name)


def find_tool(name: str, *, besides: str = "") -> str:
    """Return the path of a program.

    :param besides: additional directories to search, as in PATH.
    :raises HostError: when it is not installed; the hint is the command that installs it.
    """
    path = shutil.which(name) or (shutil.which(name, path=besides) if besides else None)
    if path is None:
        raise HostError(
            f'the program "{name}" was not found in PATH',
            hint=f"apt-get install --no-install-recommends {package_of(name)}",
        )
    return path


def memory_mib(*names: str) -> int:
    """Return the sum in MiB of some lines of proc_meminfo(5); a missing one counts as 0."""
    lines = (line.split() for line in MEMINFO.read_text(encoding="ascii").splitlines())
    return sum(int(words[1]) for words in lines if words[0].rstrip(":") in names) // 1024
