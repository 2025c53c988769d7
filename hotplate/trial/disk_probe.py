"""Read the state of a guest from its disk, when the guest itself cannot be asked.

A guest without network or cloud-init never starts the harness's shell, and that is when its
masked, missing or misspelt parts matter most.  The disk is copied as it is, without stopping the
guest, and ext4's own tool reads the copy, within limits, and where we are root as a user that
owns nothing else: nothing is mounted, and no kernel reads data that a guest wrote.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from hotplate.children.reaper import choose_user
from hotplate.image.inspect import EXT_MAGIC_AT, SECTOR, qemu_img
from hotplate.image.overlay import ADDRESS_SPACE
from hotplate.timing.deadline import Deadline
from hotplate.verdict import health

MOST_BYTES = 6 << 30
"""The most data on a disk for which a copy is made."""

SECONDS = 60.0
_FILE_BYTES = 8 << 20
_NAMES = 200
_LINKS = 20
_UNIT_DIRECTORIES = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
_NULL = "/dev/null"


class FileSystem:
    """The files of one ext file system, read by debugfs.

    :param disk: a raw file, open to be read; where we are root it is given to another user.
    :param offset: bytes from its start to the file system.
    :param deadline: after it every file reads as empty.
    """

    def __init__(self, program: str, disk: BinaryIO, offset: int, deadline: Deadline) -> None:
        self._deadline = deadline
        prlimit = shutil.which("prlimit")
        bounds = [prlimit, f"--as={ADDRESS_SPACE}", f"--cpu={SECONDS:.0f}"] if prlimit else []
        self._descriptor = disk.fileno()
        # No other user gets through the directories above it.
        name = f"/proc/self/fd/{self._descriptor}"
        self._disk = f"{name}?offset={offset}" if offset else name
        other: list[str] = []
        if (user := choose_user()) >= 0:
            # Not by "user" of subprocess, which would copy this process' page tables each time.
            other = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
            os.fchown(self._descriptor, user, user)
        self._words = [*other, *bounds, program, "-c", "-R"]

    def _ask(self, request: str) -> bytes:
        """Return debugfs' answer, up to a limit: a guest may make any file large."""
        if self._deadline.passed:
            return b""
        with subprocess.Popen(
            [*self._words, request, self._disk],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[self._descriptor],
        ) as child:
            late = threading.Timer(self._deadline.left, child.kill)
            late.start()
            try:
                assert child.stdout is not None
                return child.stdout.read(_FILE_BYTES)
            finally:
                late.cancel()
                child.kill()

    def stat(self, path: str) -> tuple[str, int, str] | None:
        """Return the type, the mode and the target of a link; None when the path does not exist."""
        text = self._ask(f'stat "{path}"').decode(errors="replace")
        match = re.search(r"Type: (\S+) +Mode: +(\d+)", text)
        if not match:
            return None
        link = re.search(r'Fast link dest: "(.*)"', text)
        target = link[1] if link else ""
        if match[1] == "symlink" and not target:
            target = self._ask(f'cat "{path}"').decode(errors="replace")
        return match[1], int(match[2], 8), target

    def real(self, path: str) -> str:
        """Return the path behind a chain of links, also when it does not exist."""
        for _ in range(_LINKS):
            info = self.stat(path)
            if info is None or info[0] != "symlink":
                return path
            path = str(_joined(PurePosixPath(path).parent, info[2]))
        return path

    def exists(self, path: str) -> bool:
        """Return True when the path behind all links exists."""
        return self.stat(self.real(path)) is not None

    def read(self, path: str) -> str:
        """Return the text of a file, "" when there is none."""
        return self._ask(f'cat "{self.real(path)}"').decode(errors="replace")

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; none when there is none."""
        text = self._ask(f'ls -p "{self.real(path)}"').decode(errors="replace")
        names = [line.split("/")[5] for line in text.splitlines() if line.count("/") >= 6]
        return sorted(name for name in names if name not in (".", "..", ""))[:_NAMES]

    def space(self) -> list[int]:
        """Return inodes, free inodes, free blocks, blocks available to users, blocks."""
        text = self._ask("stats -h").decode(errors="replace")
        values = dict(re.findall(r"^(\w[\w ]*\w): +(\d+)$", text, re.MULTILINE))
        names = ("Inode count", "Free inodes", "Free blocks", "Reserved block count", "Block count")
        inodes, free_inodes, free, kept, blocks = (int(values.get(name, 1)) for name in names)
        return [inodes, free_inodes, free, max(0, free - kept), blocks]


def _joined(directory: PurePosixPath, target: str) -> PurePosixPath:
    parts: list[str] = []
    for part in (directory / target).parts[1:]:
        if part == "..":
            parts = parts[:-1]
        elif part != ".":
            parts.append(part)
    return PurePosixPath("/", *parts)


def look_at_disk(disk: Path) -> str:
    """Return the state on a machine's disk, in the sections of :mod:`hotplate.verdict.health`.

    :param disk: qcow2, which may be in use.
    :return: "" when it cannot be read: no ext file system, no debugfs or, for root, no setpriv, no
        space for a copy.
    """
    program = shutil.which("debugfs", path="/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin")
    if program is None or (os.geteuid() == 0 and shutil.which("setpriv") is None):
        return ""
    if not _fits(disk):
        return ""
    with tempfile.TemporaryDirectory(prefix="hotplate-disk-", dir=disk.parent) as folder:
        copy = Path(folder) / "disk.raw"
        done = qemu_img("convert", "-U", "-f", "qcow2", "-O", "raw", str(disk), str(copy))
        if done.returncode != 0:
            return ""
        with copy.open("rb") as stream:
            for offset in _file_systems(stream):
                files = FileSystem(program, stream, offset, Deadline(SECONDS, "a look at a disk"))
                if files.exists("/etc") and files.exists("/usr"):
                    return "\n".join(_report(files)) + "\n"
    return ""


def _fits(disk: Path) -> bool:
    done = qemu_img("measure", "-U", "--output=json", "-f", "qcow2", "-O", "qcow2", str(disk))
    if done.returncode != 0:
        return False
    needed = int(json.loads(done.stdout)["required"])
    return needed < min(MOST_BYTES, shutil.disk_usage(disk.parent).free // 2)


def _file_systems(disk: BinaryIO) -> Iterator[int]:
    """Yield the offsets of the ext file systems on a disk, in bytes."""
    for offset in (0, *_partitions(disk.read(64 * SECTOR))):
        disk.seek(offset + EXT_MAGIC_AT)
        if disk.read(2) == b"\x53\xef":
            yield offset


def _partitions(head: bytes) -> Iterator[int]:
    if head[SECTOR : SECTOR + 8] == b"EFI PART":
        size = struct.unpack("<I", head[SECTOR + 84 : SECTOR + 88])[0] or 128
        for at in range(2 * SECTOR, len(head) - 127, max(size, 128)):
            if any(head[at : at + 16]):
                yield struct.unpack("<Q", head[at + 32 : at + 40])[0] * SECTOR
    elif head[510:512] == b"\x55\xaa":
        for at in range(446, 510, 16):
            if start := struct.unpack("<I", head[at + 8 : at + 12])[0]:
                yield start * SECTOR


# -- the sections of the report --------------------------------------------------------------------


def _report(files: FileSystem) -> Iterator[str]:
    sections = {
        "units": _units,
        "programs": _programs,
        "venv": _venv,
        "hooks": lambda files: files.names(health.HOOKS),
        "space": _space,
        "mounts": _mounts,
        "fstab": _fstab,
        "default-target": _default_target,
        "cloud-init": _cloud_init,
        "datasource-list": _datasource_list,
        "broken-yaml": _broken_yaml,
        "networks": _networks,
        "fixed-addresses": _fixed_addresses,
        "collect-conf": _collect_conf,
        "packages": _packages,
    }
    for name, lines in sections.items():
        yield f"=== {name}"
        yield from lines(files)
    yield "=== end"


def _units(files: FileSystem) -> Iterator[str]:
    system = _UNIT_DIRECTORIES[0]
    wants = [name for name in files.names(system) if name.endswith((".wants", ".requires"))]
    enabled = {unit for name in wants for unit in files.names(f"{system}/{name}")}
    for unit in health.UNITS:
        path = next(
            (f"{each}/{unit}" for each in _UNIT_DIRECTORIES if files.stat(f"{each}/{unit}")), ""
        )
        state = "enabled" if unit in enabled else "disabled"
        load = "loaded"
        if not path:
            load, state = "not-found", ""
        elif files.real(path) == _NULL or not (text := files.read(path)).strip():
            load = state = "masked"
        elif state == "disabled" and "[Install]" not in text:
            state = "static"
        yield from (f"Id={unit}", f"LoadState={load}", f"UnitFileState={state}", "ActiveState=")


def _programs(files: FileSystem) -> Iterator[str]:
    paths = []
    for directory in _UNIT_DIRECTORIES:
        text = files.read(f"{directory}/{health.AGENT}")
        if match := re.search(r"^ExecStart=[-@:+!]*(/\S+)", text, re.MULTILINE):
            paths.append(match[1])
            break
    for directory in (
        *(f"{health.REFRESH}/{name}" for name in files.names(health.REFRESH)),
        health.HOOKS,
    ):
        paths += [f"{directory}/{name}" for name in files.names(directory)]
    for path in ("/usr/bin/cloud-init", *paths):
        yield from _program(files, path)
    if files.exists(f"{health.REFRESH}/configure.d") and not files.exists(health.PHASE_SCRIPT):
        yield f"gone {health.PHASE_SCRIPT}"


def _program(files: FileSystem, path: str) -> Iterator[str]:
    real = files.real(path)
    info = files.stat(real)
    if info is None:
        # An image need not have cloud-init.
        if path != "/usr/bin/cloud-init":
            yield f"gone {path} {real}"
        return
    if not info[1] & 0o111:
        yield f"not-executable {path}"
    first = files.read(real)[:200].partition("\n")[0]
    if first.startswith("#!") and first.endswith("\r"):
        yield f"carriage-return {path}"
        return
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    if words and not words[0].endswith("/env") and not files.exists(words[0]):
        yield f"no-interpreter {path} {words[0]} {files.real(words[0])}"


def _venv(files: FileSystem) -> Iterator[str]:
    for name in files.names("/opt"):
        python = f"/opt/{name}/bin/python3"
        libraries = files.names(f"/opt/{name}/lib")
        version = re.search(r"/python(\d+\.\d+)$", files.real(python))
        if version and files.exists(python) and libraries:
            pythons = [each for each in libraries if each.startswith("python3")]
            yield f"{python} {version[1]} {' '.join(pythons)}"


def _space(files: FileSystem) -> Iterator[str]:
    yield f"/ {' '.join(map(str, files.space()))}"


def _fstab_rows(files: FileSystem) -> Iterator[list[str]]:
    for line in files.read("/etc/fstab").splitlines():
        row = line.split()
        if len(row) >= 4 and not row[0].startswith("#"):
            yield row


def _mounts(files: FileSystem) -> Iterator[str]:
    yield from (" ".join(row) for row in _fstab_rows(files))


def _fstab(files: FileSystem) -> Iterator[str]:
    yield from (" ".join(row[:2]) for row in _fstab_rows(files))


def _default_target(files: FileSystem) -> Iterator[str]:
    if info := files.stat("/etc/systemd/system/default.target"):
        yield PurePosixPath(info[2]).name


def _cloud_init(files: FileSystem) -> Iterator[str]:
    if files.exists(path := "/etc/cloud/cloud-init.disabled"):
        yield path


def _cloud_configs(files: FileSystem) -> Iterator[tuple[str, str]]:
    directory = "/etc/cloud/cloud.cfg.d"
    names = [f"{directory}/{name}" for name in files.names(directory) if name.endswith(".cfg")]
    for path in ("/etc/cloud/cloud.cfg", *names):
        yield path, files.read(path)


def _datasource_list(files: FileSystem) -> Iterator[str]:
    """Yield the list in effect: later files override earlier ones."""
    last = ""
    for path, text in _cloud_configs(files):
        if match := re.search(r"^datasource_list: *(.*)", text, re.MULTILINE):
            last = f"{path} {match[1]}"
    if last:
        yield last


def _broken_yaml(files: FileSystem) -> Iterator[str]:
    import yaml

    for path, text in _cloud_configs(files):
        try:
            yaml.safe_load(text)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f"line {mark.line + 1}: " if mark else ""
            yield f"{path} {where}{getattr(error, 'problem', None) or 'it cannot be read'}"


def _networks(files: FileSystem) -> Iterator[str]:
    directory = "/etc/systemd/network"
    for name in files.names(directory):
        if name.endswith(".network"):
            matches = re.search(r"\[Match\]([^\[]*)", files.read(f"{directory}/{name}"))
            yield f"{directory}/{name} {' '.join(matches[1].split()) if matches else '*'}"


_FIXED = (
    ("/etc/systemd/network", ".network", r"^\s*Address\s*=\s*([\d.]+)"),
    ("/etc/network", "interfaces", r"^\s*address\s+([\d.]+)"),
    ("/etc/network/interfaces.d", "", r"^\s*address\s+([\d.]+)"),
    ("/etc/netplan", ".yaml", r"^(?!\s*#)(?!.*(?:via|gateway|nameservers)).*?([\d.]+)/\d+"),
    ("/etc/NetworkManager/system-connections", ".nmconnection", r"^address\d*=([\d.]+)"),
)
"""Each renderer's setting of an IPv4 address: directory, ending of its files, the line."""


def _fixed_addresses(files: FileSystem) -> Iterator[str]:
    for directory, ending, line in _FIXED:
        for name in files.names(directory):
            if not name.endswith(ending):
                continue
            for address in re.findall(line, files.read(f"{directory}/{name}"), re.MULTILINE):
                if not address.startswith("127."):
                    yield f"{directory}/{name} {address}"


def _collect_conf(files: FileSystem) -> Iterator[str]:
    text = files.read("/etc/os-collect-config.conf")
    for match in re.finditer(r"^(\w*url) *= *\w+://(?:[^/@\s]*@)?([^/\s]*)", text, re.MULTILINE):
        yield f"{match[1]} {match[2]}"


def _packages(files: FileSystem) -> Iterator[str]:
    name = ""
    for line in files.read("/var/lib/dpkg/status").splitlines():
        if line.startswith("Package: "):
            name = line[9:]
        elif line.startswith("Status: ") and not re.search(
            r" ok (installed|config-files|not-installed)$", line
        ):
            yield f"{name} {line[8:]}"
