"""A disk laid out as Debian's own cloud images, made without hotplate's elements.

Source: the package lists and partitions of Debian's cloud images (their classes CLOUD, GENERIC and
the partition table of ``genericcloud``): the root file system is the first partition in the table
and the last on the disk, behind one for GRUB and one for UEFI.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from hotplate.image import mirrors

PACKAGES = (
    *("cloud-guest-utils", "cloud-init", "grub-efi-amd64-bin", "grub-pc-bin", "grub2-common"),
    *("linux-image-cloud-amd64", "netplan.io", "openssh-server", "sudo", "systemd-resolved"),
    *("systemd-sysv", "systemd-timesyncd", "unattended-upgrades", "dhcpcd-base"),
)
TABLE = """\
label: gpt
14 : start=2048, size=6144, type=21686148-6449-6E6F-744E-656564454649
15 : start=8192, size=253952, type=U
1 : start=262144, type=L
"""
START = 262144 * 512
#: Bytes.
SIZE = 2 << 30

FINISH = """
echo 'LABEL=root / ext4 rw,discard,errors=remount-ro 0 1' > "$1/etc/fstab"
cd "$1/boot"
mkdir -p grub
words="root=LABEL=root ro console=tty0 console=ttyS0,115200"
echo "linux /boot/$(echo vmlinuz-*) $words" > grub/grub.cfg
rm -f "$1"/etc/ssh/ssh_host_*
truncate -s 0 "$1/etc/machine-id"
find "$1/var/log" -type f -delete
"""
SECONDS = 1200


def make(disk: Path, release: str) -> Path:
    """Make a raw disk.

    :param disk: the file to write; the root directory is kept beside it.
    :param release: codename of the Debian release.
    """
    root = disk.with_suffix(".root")
    places = mirrors.of_this_host(release)
    finish = disk.with_suffix(".sh")
    finish.write_text(f"#!/bin/sh\nset -eu\n{FINISH}")
    finish.chmod(0o755)
    options = [f"--aptopt={option}" for option in places.options]
    words = [f"--include={','.join(PACKAGES)}", f"--customize-hook={finish}"]
    run("mmdebstrap", "--variant=minbase", *options, *words, release, root, places.main)
    with disk.open("wb") as file:
        file.truncate(SIZE)
    run("sfdisk", "-q", disk, stdin=TABLE)
    # Only the boot code: no test boots this disk.
    boot_code = (root / "usr/lib/grub/i386-pc/boot.img").read_bytes()[:440]
    with disk.open("r+b") as file:
        file.write(boot_code)
    size = f"{(SIZE - START) // 1024 - 1024}k"
    run("mkfs.ext4", "-q", "-F", "-L", "root", "-d", root, "-E", f"offset={START}", disk, size)
    return disk


def run(*words: object, stdin: str = "") -> None:
    """Run a program on the host.

    :raises subprocess.CalledProcessError: when it fails.
    """
    command = [str(word) for word in words]
    subprocess.run(command, input=stdin, text=True, check=True, timeout=SECONDS)
