"""Small images made from a directory, without root, for the tests of the inspection room."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

START = 1 << 20
CODE = b"\xeb\x63\x90" + b"GRUB" * 20
SBIN = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}

STATUS = """\
Package: dpkg
Status: install ok installed
Installed-Size: 6400
Architecture: amd64
Version: 1.21.23

Package: puppet-agent
Status: install ok installed
Installed-Size: 5000
Architecture: all
Version: 8.10.0-5

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1.0
"""

TEXTS = {
    "boot/grub/grub.cfg": (
        "linux /boot/vmlinuz-6.1.0-56-cloud-amd64 root=LABEL=root ro console=ttyS0\n"
    ),
    "boot/vmlinuz-6.1.0-56-cloud-amd64": "kernel",
    "etc/cloud/cloud.cfg": "users: [default]\n",
    "etc/cloud/cloud.cfg.d/90_heat.cfg": "datasource_list: [ OpenStack, ConfigDrive, None ]\n",
    "etc/fstab": "LABEL=root / ext4 defaults 0 1\n",
    "etc/machine-id": "",
    "etc/os-collect-config.conf": "[DEFAULT]\ncommand = os-refresh-config\n",
    "etc/shadow": "root:*:20780:0:99999:7:::\ndaemon:!*:20780::::::\n",
    "etc/systemd/system/os-collect-config.service": (
        "[Service]\nExecStart=/usr/libexec/os-collect-config/start\n"
        "[Install]\nWantedBy=multi-user.target\n"
    ),
    "usr/lib/os-release": (
        'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n'
        "VERSION_CODENAME=bookworm\n"
    ),
    "usr/lib/systemd/system/systemd-networkd.service": "[Install]\nWantedBy=multi-user.target\n",
    "usr/lib/systemd/system/systemd-timesyncd.service": "[Install]\nWantedBy=sysinit.target\n",
    "var/lib/dpkg/info/puppet-agent.list": "/.\n/usr\n/usr/bin\n/bin/puppet\n",
    "var/lib/dpkg/status": STATUS,
    "var/log/dpkg.log": "",
}

PROGRAMS = (
    "usr/bin/cloud-init",
    "usr/bin/growpart",
    "usr/bin/ip",
    "usr/bin/puppet",
    "usr/lib/systemd/systemd",
    "usr/lib/systemd/systemd-networkd",
    "usr/libexec/heat-agent/os-apply-config",
    "usr/libexec/heat-agent/os-collect-config",
    "usr/libexec/heat-agent/os-refresh-config",
    "usr/libexec/heat-config/hooks/puppet",
    "usr/libexec/heat-config/hooks/script",
    "usr/libexec/os-collect-config/start",
    "usr/libexec/os-refresh-config/configure.d/55-heat-config",
    "usr/sbin/dhcpcd",
)

WANTS = "etc/systemd/system/multi-user.target.wants"
LINKS = {
    "bin": "usr/bin",
    "etc/os-release": "../usr/lib/os-release",
    "lib": "usr/lib",
    "sbin": "usr/sbin",
    "usr/local/bin/os-apply-config": "/usr/libexec/heat-agent/os-apply-config",
    "usr/local/bin/os-collect-config": "/usr/libexec/heat-agent/os-collect-config",
    "usr/local/bin/os-refresh-config": "/usr/libexec/heat-agent/os-refresh-config",
    "usr/sbin/init": "../lib/systemd/systemd",
    f"{WANTS}/os-collect-config.service": "/etc/systemd/system/os-collect-config.service",
    f"{WANTS}/systemd-networkd.service": "/lib/systemd/system/systemd-networkd.service",
    f"{WANTS}/systemd-timesyncd.service": "/lib/systemd/system/systemd-timesyncd.service",
}


@pytest.fixture(autouse=True)
def _can_it_run() -> None:
    for tool in ("mke2fs", "qemu-img"):
        if shutil.which(tool, path=SBIN["PATH"]) is None:
            pytest.skip(f"needs {tool} on this host")


def write(root: Path, name: str, text: str | bytes = "", *, mode: int = 0o644) -> Path:
    """Write a file below a directory."""
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)
    return path


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """The files of an image with nothing wrong in it: puppet and script, cloud-init."""
    root = tmp_path / "root"
    for name, text in TEXTS.items():
        write(root, name, text)
    for name in PROGRAMS:
        write(root, name, "#!/bin/sh\n", mode=0o755)
    for name, target in LINKS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    return root


def make_file_system(root: Path, path: Path, *options: str, size: str = "4M") -> Path:
    """Make a file system from a directory, in a file of its own."""
    kind = () if "-t" in options else ("-t", "ext4")
    command = ["mke2fs", "-q", "-F", "-d", root, "-L", "root", *kind, *options]
    # mke2fs adds lost+found, whose time must not depend on the clock.
    environment = {**SBIN, "E2FSPROGS_FAKE_TIME": "1700000000"}
    subprocess.run([*command, path, size], check=True, env=environment)
    return path


@pytest.fixture
def make_disk(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a whole disk from a directory: an MBR, boot code, one
    partition.
    """

    def make(root: Path, name: str = "web.raw", *options: str) -> Path:
        path = tmp_path / name
        raw = path.with_suffix(".raw")
        system = make_file_system(root, tmp_path / "system", *options).read_bytes()
        entry = struct.pack("<B3sB3sII", 0x80, b"\0\2\0", 0x83, bytes(3), 2048, len(system) >> 9)
        head = CODE.ljust(446, b"\0") + entry.ljust(64, b"\0") + b"\x55\xaa"
        raw.write_bytes(head.ljust(START, b"\0") + system)
        if path != raw:
            subprocess.run(["qemu-img", "convert", "-c", "-O", "qcow2", raw, path], check=True)
            raw.unlink()
        return path

    return make


@pytest.fixture(name="write")
def write_fixture():
    """:func:`write`, for test modules."""
    return write


@pytest.fixture(name="make_file_system")
def make_file_system_fixture():
    """:func:`make_file_system`, for test modules."""
    return make_file_system
