"""The probes of ``hotplate doctor``, which find a host's abilities by using them.

Each probe uses the thing it checks, leaves nothing behind, and reports the result in one sentence.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib import metadata
from pathlib import Path

from hotplate.errors import HostError
from hotplate.host_tools import memory_mib, package_of

SECONDS = 20.0
MIB = 1 << 20
GIB = 1 << 30


class Use(StrEnum):
    """The verb that needs a tool or an ability; EXTRA is for those that neither always needs."""

    TEST = "test"
    BUILD = "build"
    EXTRA = "extra"


class State(StrEnum):
    """The result of a probe: it works; it does not; it does not, but there is another way."""

    WORKS = "ok"
    FAILS = "no"
    OTHERWISE = "--"


@dataclass(frozen=True)
class Finding:
    """The result of a probe.

    :param package: the Debian package that would fix it, "" when no package does.
    """

    name: str
    use: Use
    state: State
    sentence: str
    package: str = ""


@dataclass(frozen=True)
class Tool:
    """A program.

    :param ask: the argument that prints its version.
    :param why: the reason that it is needed.
    """

    name: str
    ask: str
    use: Use
    why: str

    def __str__(self) -> str:
        return self.name


TOOLS: tuple[Tool, ...] = (
    Tool("qemu-system-x86_64", "--version", Use.TEST, "it runs the image"),
    Tool("qemu-img", "--version", Use.TEST, "it makes the overlay over the image"),
    Tool("debootstrap", "--version", Use.BUILD, "it makes the base system"),
    Tool("sudo", "--version", Use.BUILD, "disk-image-create calls it"),
    Tool("unshare", "--version", Use.BUILD, "it keeps a build's mounts apart"),
    Tool("losetup", "--version", Use.BUILD, "it attaches the image being built"),
    Tool("fstrim", "--version", Use.BUILD, "it makes the image small"),
    Tool("sfdisk", "--version", Use.BUILD, "it writes partition tables"),
    Tool("mkfs.ext4", "-V", Use.BUILD, "it makes the root file system"),
    Tool("qemu-system-aarch64", "--version", Use.EXTRA, "for images for ARM"),
    Tool("mmdebstrap", "--version", Use.EXTRA, "it makes base systems faster"),
    Tool("sgdisk", "--version", Use.EXTRA, "for GPT, which UEFI images have"),
    Tool("mkfs.vfat", "-?", Use.EXTRA, "for the boot partition of UEFI images"),
    Tool("xorriso", "--version", Use.EXTRA, "for configuration drives (ISO 9660)"),
    Tool("mcopy", "--version", Use.EXTRA, "for configuration drives (VFAT)"),
    Tool("swtpm", "--version", Use.EXTRA, "for guests with a TPM (--tpm)"),
    Tool("rpm", "--version", Use.EXTRA, "for inspecting images with packages of rpm"),
    Tool("socat", "-V", Use.EXTRA, "for hosts without network namespaces"),
)

#: The Python packages that hotplate depends on.
PACKAGES = {
    "openstack-heat": Use.TEST,
    "python-heatclient": Use.TEST,
    "python-keystoneclient": Use.TEST,
    "waitress": Use.TEST,
    "paramiko": Use.TEST,
    "pytest-testinfra": Use.TEST,
    "diskimage-builder": Use.BUILD,
}

NOT_NEEDED = "hotplate's block-device plug-in does not need it"

Probe = Callable[[], Iterator[Finding]]


def _run(*command: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """Run a program in the C locale; a missing program, or one that does not end, has failed."""
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer in {seconds:.0f} s")
    except OSError as error:
        return subprocess.CompletedProcess(command, 127, "", error.strerror or str(error))


def _reply(done: subprocess.CompletedProcess[str]) -> str:
    """Return the last output line of a failed program."""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1].strip() if lines else f"exit status {done.returncode}"


def _search_path() -> str:
    """Return the search path of programs: beside this Python, PATH, and the sbin folders."""
    return os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]
    )


def probe_tool(tool: Tool) -> Finding:
    """Run a program to print its version."""
    path = shutil.which(tool.name, path=_search_path())
    if path is None:
        state = State.OTHERWISE if tool.use is Use.EXTRA else State.FAILS
        sentence = f"is not installed; {tool.why}"
        return Finding(tool.name, tool.use, state, sentence, package_of(tool.name))
    done = _run(path, tool.ask)
    text = done.stdout + done.stderr
    match = re.search(r"\d+(?:\.\d+)+\S*", text) or re.search(r"\d+", text)
    # Other statuses do not matter: mkfs.vfat prints its version with its usage, and fails.
    if done.returncode in (126, 127) or match is None:
        sentence = f"does not run: {_reply(done)}"
        return Finding(tool.name, tool.use, State.FAILS, sentence, package_of(tool.name))
    return Finding(tool.name, tool.use, State.WORKS, f"version {match[0].rstrip(',')} runs")


def tools() -> Iterator[Finding]:
    """Probe every program of the table."""
    for tool in TOOLS:
        yield probe_tool(tool)


def python_packages() -> Iterator[Finding]:
    """Look for the Python packages, by their installed metadata."""
    for name, use in PACKAGES.items():
        try:
            sentence = f"version {metadata.version(name)} is installed"
            if name == "openstack-heat":
                sentence += f", for {sys.executable}"
            yield Finding(name, use, State.WORKS, sentence)
        except metadata.PackageNotFoundError:
            hint = f"is not installed; fix it with: {sys.executable} -m pip install hotplate"
            yield Finding(name, use, State.FAILS, hint)


def disk_image_create() -> Iterator[Finding]:
    """Look for diskimage-builder's program."""
    name = "disk-image-create"
    if path := shutil.which(name, path=_search_path()):
        yield Finding(name, Use.BUILD, State.WORKS, f"is {path}")
    else:
        yield Finding(name, Use.BUILD, State.FAILS, "is not on PATH")


def accelerator(cache: Path) -> Iterator[Finding]:
    """Report the accelerator that a guest would get; KVM counts only after it has run something."""
    from hotplate.machine import accelerator as chooser

    try:
        chosen = chooser.choose(cache=cache)
    except HostError as error:
        yield Finding("accelerator", Use.TEST, State.FAILS, error.message)
        return
    yield Finding("accelerator", Use.TEST, State.WORKS, f"{chosen.name}: {chosen.reason}")


def wiring() -> Iterator[Finding]:
    """Report a guest's connection to the metadata address: opened, and closed again."""
    from hotplate.machine import wiring as ways

    try:
        with ways.choose([80]) as chosen:
            network = f"{chosen.name}: {chosen.reason}"
            yield Finding("network for guests", Use.TEST, State.WORKS, network)
    except HostError as error:
        yield Finding("network for guests", Use.TEST, State.FAILS, error.message, "socat")


def networks() -> Iterator[Finding]:
    """Make a network between servers, and remove it again."""
    from hotplate.network import segment

    name = "network between servers"
    why = segment.refusal()
    if not why:
        yield Finding(name, Use.EXTRA, State.WORKS, "could be made, with its DHCP server")
        return
    missing = [tool for tool in segment.TOOLS if shutil.which(tool, path=_search_path()) is None]
    sentence = f"cannot be made, and no server reaches another: {why}"
    package = package_of(missing[0]) if missing else ""
    yield Finding(name, Use.EXTRA, State.OTHERWISE, sentence, package)


def containers() -> Iterator[Finding]:
    """Boot a container with a tiny root, for guests that are containers."""
    from hotplate.container import trial

    name = "containers"
    if os.geteuid() != 0:
        sentence = "not tried: systemd-nspawn needs root; guests run under QEMU"
        yield Finding(name, Use.EXTRA, State.OTHERWISE, sentence)
        return
    why = trial.refusal()
    if not why:
        sentence = "one was booted; for images whose builder you trust (--machine container)"
        yield Finding(name, Use.EXTRA, State.WORKS, sentence)
        return
    missing = shutil.which("systemd-nspawn", path=_search_path()) is None
    package = package_of("systemd-nspawn") if missing else ""
    sentence = f"cannot be booted, guests run under QEMU: {why}"
    yield Finding(name, Use.EXTRA, State.OTHERWISE, sentence, package)


def namespaces() -> Iterator[Finding]:
    """Enter a user and a network namespace of our own."""
    done = _run("unshare", "--user", "--map-root-user", "--net", "true")
    if done.returncode == 0:
        sentence = "user and network namespaces can be made"
        yield Finding("namespaces", Use.EXTRA, State.WORKS, sentence)
    else:
        sentence = f"cannot be made by this user ({_reply(done)}); guests are wired through socat"
        yield Finding("namespaces", Use.EXTRA, State.OTHERWISE, sentence)


def firmware() -> Iterator[Finding]:
    """Look for UEFI firmware for guests; BIOS comes with QEMU."""
    from hotplate.machine.config import ARCHITECTURES, Firmware, uefi_files

    titles = {Firmware.UEFI: "UEFI", Firmware.SECURE_BOOT: "Secure-Boot"}
    for name, row in ARCHITECTURES.items():
        for kind, title in titles.items():
            try:
                sentence = f"is {uefi_files(name, kind)[0]}"
                yield Finding(f"{title} {name}", Use.EXTRA, State.WORKS, sentence)
            except HostError:
                sentence = f"is not installed; --firmware {kind.value} is refused"
                yield Finding(f"{title} {name}", Use.EXTRA, State.OTHERWISE, sentence, row.package)


def memory() -> Iterator[Finding]:
    """Check the memory for one guest: 1 GiB of its own, and QEMU's when it emulates."""
    needed = 1800
    free = memory_mib("MemAvailable")
    state = State.WORKS if free >= needed else State.FAILS
    sentence = f"{free} MiB are available, a guest takes up to {needed} MiB"
    yield Finding("memory", Use.TEST, state, sentence)


def disk(cache: Path) -> Iterator[Finding]:
    """Check the room for overlays and builds, by allocating some of it."""
    needs = (
        ("disk for tests", Use.TEST, Path(tempfile.gettempdir()), 1 * GIB),
        ("disk for builds", Use.BUILD, cache, 6 * GIB),
    )
    for name, use, folder, needed in needs:
        there = folder
        # A folder that does not exist yet will be on its nearest parent's file system.
        while not there.exists():
            there = there.parent
        try:
            with tempfile.TemporaryFile(dir=there) as stream:
                # The free space alone does not show a quota.
                os.posix_fallocate(stream.fileno(), 0, 16 * MIB)
        except OSError as error:
            yield Finding(name, use, State.FAILS, f'"{folder}" cannot be used: {error.strerror}')
            continue
        free = shutil.disk_usage(there).free
        sentence = f'{free / GIB:.1f} GiB are free for "{folder}", {needed / GIB:.0f} are needed'
        yield Finding(name, use, State.WORKS if free >= needed else State.FAILS, sentence)


def privileges() -> Iterator[Finding]:
    """Check for root, which disk-image-create needs: this user, or sudo without a password.

    In a container, root may lack the right to mount.
    """
    sentence = "this user is root"
    if os.geteuid() != 0:
        sentence = "sudo works without a password"
        done = _run("sudo", "-n", "true")
        if done.returncode != 0:
            yield Finding("root", Use.BUILD, State.FAILS, f"sudo refuses: {_reply(done)}")
            return
    done = _as_root("unshare", "--mount", "--propagation", "unchanged", "--", "true")
    if done.returncode == 0:
        yield Finding("root", Use.BUILD, State.WORKS, sentence)
    else:
        yield Finding("root", Use.BUILD, State.FAILS, f"root may not mount: {_reply(done)}")


def _as_root(*command: str) -> subprocess.CompletedProcess[str]:
    return _run(*(() if os.geteuid() == 0 else ("sudo", "-n")), *command)


@contextlib.contextmanager
def _loop(file: Path, *options: str) -> Iterator[str]:
    """Attach a file to a loop device; raise HostError with the reason when that fails."""
    done = _as_root("losetup", "--find", "--show", *options, str(file))
    if done.returncode != 0:
        raise HostError(_reply(done))
    device = done.stdout.strip()
    try:
        yield device
    finally:
        _as_root("losetup", "--detach", device)


def loop_devices() -> Iterator[Finding]:
    """Check loop devices, and that the kernel finds a partition on one."""
    name, parsing = "loop devices", "partition parsing"
    with tempfile.TemporaryDirectory(prefix="hotplate-doctor-") as folder:
        file = Path(folder) / "disk"
        with file.open("wb") as stream:
            stream.truncate(8 * MIB)
            # A master boot record with one Linux partition from sector 2048 on.
            stream.seek(446)
            # An entry: flag, first CHS address, type, last CHS address, first sector, number of
            # sectors.
            stream.write(struct.pack("<B3sB3sII", 0, b"\0" * 3, 0x83, b"\0" * 3, 2048, 8192))
            stream.seek(510)
            stream.write(b"\x55\xaa")
        try:
            with _loop(file, "--partscan") as device:
                yield Finding(name, Use.BUILD, State.WORKS, f"a file could be attached to {device}")
                base = Path(device).name
                if Path(f"/sys/block/{base}/{base}p1").exists():
                    yield Finding(parsing, Use.EXTRA, State.WORKS, "the kernel found a partition")
                else:
                    sentence = f"the kernel finds no partition on a loop device; {NOT_NEEDED}"
                    yield Finding(parsing, Use.EXTRA, State.OTHERWISE, sentence)
        except HostError as error:
            yield Finding(name, Use.BUILD, State.FAILS, f"cannot be used: {error.message}")


def device_mapper() -> Iterator[Finding]:
    """Ask the kernel's device-mapper for its version (DM_VERSION of linux/dm-ioctl.h)."""
    size = 312
    # _IOWR(DM_IOCTL, DM_VERSION_CMD, struct dm_ioctl): a structure of 312 bytes, which begins with
    # the caller's version, 4.0.0, and its own size.
    request = (3 << 30) | (size << 16) | (0xFD << 8)
    answer = bytearray(struct.pack("<IIIII", 4, 0, 0, size, 0).ljust(size, b"\0"))
    try:
        with Path("/dev/mapper/control").open("rb") as control:
            fcntl.ioctl(control, request, answer)
    except OSError as error:
        sentence = f"is not usable ({error.strerror}); {NOT_NEEDED}"
        yield Finding("device-mapper", Use.EXTRA, State.OTHERWISE, sentence)
        return
    version = ".".join(str(part) for part in struct.unpack_from("<III", answer))
    yield Finding("device-mapper", Use.EXTRA, State.WORKS, f"version {version} answers")


def vfat() -> Iterator[Finding]:
    """Check VFAT by mounting: diskimage-builder's own UEFI images need it, hotplate's do not."""
    maker = shutil.which("mkfs.vfat", path=_search_path())
    if maker is None:
        return
    with tempfile.TemporaryDirectory(prefix="hotplate-doctor-") as folder:
        file, mount = Path(folder) / "vfat", Path(folder) / "mount"
        mount.mkdir()
        with file.open("wb") as stream:
            stream.truncate(4 * MIB)
        _run(maker, str(file))
        try:
            # In a mount namespace of its own, so that the mount always goes away.
            with _loop(file) as device:
                done = _as_root(
                    "unshare", "--mount", "mount", "-t", "vfat", "-o", "ro", device, str(mount)
                )
        except HostError as error:
            done = subprocess.CompletedProcess([], 1, "", error.message)
    if done.returncode == 0:
        yield Finding("vfat", Use.EXTRA, State.WORKS, "a VFAT file system could be mounted")
    else:
        # mount's first line is the reason, its last where else to look.
        reason = done.stderr.strip().partition("\n")[0].rpartition(": ")[2].rstrip(".")
        sentence = f"cannot be mounted ({reason}); UEFI images are made with mtools"
        yield Finding("vfat", Use.EXTRA, State.OTHERWISE, sentence)


def probes(cache: Path) -> dict[str, Probe]:
    """Return all probes by name, in the order in which they are run.

    :param cache: the cache directory.
    """
    return {
        "tools": tools,
        "accelerator": partial(accelerator, cache),
        "wiring": wiring,
        "memory": memory,
        "disk": partial(disk, cache),
        "python packages": python_packages,
        "privileges": privileges,
        "disk image create": disk_image_create,
        "loop devices": loop_devices,
        "device mapper": device_mapper,
        "vfat": vfat,
        "namespaces": namespaces,
        "networks": networks,
        "containers": containers,
        "firmware": firmware,
    }
