"""A guest that boots in seconds under TCG: the distribution's cloud kernel and a static busybox.

Both come from the host's own package sources, for another processor as well; they are kept in a
cache directory. The guest's init brings up the disk, the networks by DHCP, and the shell channel,
and then reports it.
"""

from __future__ import annotations

import gzip
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotplate.guest.shell import guest_program

NONCE = "tiny-nonce"
READY = "tiny guest is ready"
MODULES = (
    "virtio_pci",
    "virtio_blk",
    "virtio_net",
    "virtio_console",
    "virtio-rng",
    "af_packet",
    "pvpanic-mmio",
    "ext4",
)
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
CONSOLE = {"x86_64": "ttyS0", "aarch64": "ttyAMA0"}
#: Raised when the contents of the initramfs change.
BUILD = "8"

NOT_FOLLOWED = ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")

DHCP = """\
#!/bin/sh
[ "$1" = bound ] || exit 0
ip address add "$ip/$mask" dev "$interface"
[ -z "$hostname" ] || hostname "$hostname"
[ -z "$search$domain" ] || echo "search ${search:-$domain}" >/etc/resolv.conf
for server in $dns; do echo "nameserver $server" >>/etc/resolv.conf; done
set -- ${staticroutes:-0.0.0.0/0 $router}
while [ "$#" -ge 2 ]; do
    ip route add "$1" via "$2" dev "$interface"
    shift 2
done
"""

INIT = """\
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /run /tmp /etc
for module in $(cat /modules/order); do insmod "/modules/$module"; done
ip link set lo up
for nic in $(cd /sys/class/net && echo eth*); do
    ip link set "$nic" up
    udhcpc -q -n -t 5 -T 1 -O search -O staticroutes -i "$nic" -s /dhcp >/dev/null 2>&1
done
(while :; do sh /shell; sleep 1; done) 2>/dev/null &
if [ -x /bin/dropbear ]; then
    mkdir -p /dev/pts /root/.ssh /etc/dropbear
    mount -t devpts pts /dev/pts
    chmod 700 /root /root/.ssh
    echo 'root:x:0:0:root:/root:/bin/sh' >/etc/passwd
    echo /bin/sh >/etc/shells
    dropbear -R -s
fi
echo 'READY'
while :; do sh </dev/console >/dev/console 2>&1; done
""".replace("READY", READY)


@dataclass(frozen=True)
class TinyGuest:
    """:param kernel: the kernel; :param initrd: the initramfs; :param append: the command line."""

    kernel: Path
    initrd: Path
    append: str


def make(*, ways_in: bool = False, arch: str = "x86_64") -> TinyGuest:
    """Return the guest, made when the cache has none.

    :param ways_in: with an ssh server, which starts a little later.
    :param arch: its processor, in QEMU's spelling; with ``ways_in`` the host's.
    :raises subprocess.CalledProcessError: when a package cannot be fetched.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotplate-tests"
    target = base / f"tiny-guest-{BUILD}{'-ways-in' if ways_in else ''}-{arch}"
    if not target.exists():
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=base) as directory:
            work = Path(directory)
            build(work, work / "new", ways_in=ways_in, arch=arch)
            try:
                (work / "new").rename(target)
            except OSError:
                if not target.exists():
                    raise
    append = f"console={CONSOLE[arch]} panic=-1 quiet cryptomgr.notests"
    return TinyGuest(target / "vmlinuz", target / "initrd", append)


def foreign(work: Path, arch: str) -> list[str]:
    """Return apt's options for packages of that processor; none for the host's."""
    if platform.machine() == arch:
        return []
    for name in ("lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    (work / "status").touch()
    settings = {
        "APT::Architecture": DEBIAN[arch],
        "APT::Architectures": DEBIAN[arch],
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    subprocess.run(["apt-get", *options, "-q", "update"], check=True, capture_output=True)
    return options


def depends(*packages: str, recurse: bool, apt: Sequence[str] = ()) -> list[str]:
    """Return the dependencies of these packages, as reported by apt."""
    options = [*apt, *(f"--no-{kind}" for kind in NOT_FOLLOWED), *["--recurse"] * recurse]
    shown = subprocess.run(
        ["apt-cache", "depends", *options, *packages], check=True, capture_output=True, text=True
    ).stdout
    return sorted(set(re.findall(r"^ +\|?Depends: ([^<\s:]+)$", shown, re.MULTILINE)))


def build(work: Path, target: Path, *, ways_in: bool, arch: str) -> None:
    """Fetch the packages into ``work`` and make ``target`` with the kernel and the initramfs."""
    apt = foreign(work, arch)
    kernel = f"linux-image-cloud-{DEBIAN[arch]}"
    packages = ["busybox-static", *depends(kernel, recurse=False, apt=apt)]
    if ways_in:
        needed = depends("dropbear-bin", recurse=True)
        libraries = [name for name in needed if name.startswith(("lib", "zlib"))]
        packages += ["dropbear-bin", *(name for name in libraries if "perl" not in name)]
    subprocess.run(
        ["apt-get", *apt, "-q", "download", *packages],
        cwd=work,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for package in work.glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, work / "root"], check=True)
    root = work / "initramfs"
    for name in ("bin", "proc", "sys", "dev", "modules", "run", "tmp"):
        (root / name).mkdir(parents=True)
    busybox = next((work / "root").rglob("bin/busybox"))
    shutil.copy(busybox, root / "bin" / "busybox")
    (root / "bin" / "sh").symlink_to("busybox")
    if ways_in:
        shutil.copy(next((work / "root").rglob("sbin/dropbear")), root / "bin" / "dropbear")
        for folder in ("lib/x86_64-linux-gnu", "lib64"):
            (root / folder).mkdir(parents=True)
        for path in (work / "root").rglob("x86_64-linux-gnu/*.so*"):
            if path.is_file():
                shutil.copy(path, root / "lib/x86_64-linux-gnu" / path.name)
        loader = "ld-linux-x86-64.so.2"
        (root / "lib64" / loader).symlink_to(f"../lib/x86_64-linux-gnu/{loader}")
    modules = next((work / "root").rglob("kernel/drivers")).parents[1]
    order = resolve(modules, MODULES)
    for module in order:
        shutil.copy(module, root / "modules" / module.name)
    (root / "modules" / "order").write_text(" ".join(module.name for module in order))
    for name, text in (("init", INIT), ("dhcp", DHCP), ("shell", guest_program(NONCE))):
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    target.mkdir()
    (target / "initrd").write_bytes(gzip.compress(cpio(root), 1))
    shutil.copy(next((work / "root" / "boot").glob("vmlinuz-*")), target / "vmlinuz")


def resolve(modules: Path, wanted: tuple[str, ...]) -> list[Path]:
    """Return the modules and their dependencies, in the order in which they are loaded."""
    files = {path.name.split(".ko")[0].replace("-", "_"): path for path in modules.rglob("*.ko*")}
    order: list[Path] = []

    def add(name: str) -> None:
        path = files.get(name.replace("-", "_"))
        if path is None or path in order:
            return  # built into the kernel, or there already
        match = re.search(rb"\0depends=([^\0]*)\0", b"\0" + path.read_bytes())
        for other in match[1].decode().split(",") if match else []:
            if other:
                add(other)
        order.append(path)

    for name in wanted:
        add(name)
    return order


def cpio(root: Path) -> bytes:
    """Return a directory as a cpio archive in the "newc" format, which the kernel unpacks."""
    parts = []

    def entry(name: str, mode: int, data: bytes, number: int) -> None:
        encoded = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
        parts.append(head + b"\0" * (-len(head) % 4) + data + b"\0" * (-len(data) % 4))

    for number, path in enumerate(sorted(root.rglob("*")), 1):
        mode = path.lstat().st_mode
        if path.is_symlink():
            data = str(path.readlink()).encode()
        else:
            data = path.read_bytes() if stat.S_ISREG(mode) else b""
        entry(str(path.relative_to(root)), mode, data, number)
    entry("TRAILER!!!", 0, b"", 0)
    return b"".join(parts)
