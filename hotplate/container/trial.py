"""Try whether this host can run containers, by booting one with a tiny root."""

from __future__ import annotations

import struct
import subprocess
import tempfile
import uuid
from pathlib import Path

from hotplate.container.machine import ContainerConfig, ContainerMachine
from hotplate.container.root import Root
from hotplate.errors import HostError, MachineLostError
from hotplate.events.log import EventLog
from hotplate.host_tools import find_tool
from hotplate.machine.wiring import Alone
from hotplate.network import segment
from hotplate.network.segment import SYSTEM_PROGRAMS
from hotplate.timing.deadline import Deadline, DeadlineExceeded

ROOT_BYTES = 8 << 20
SECONDS = 30.0
#: The machine code of ``exit(0)``, by the processor, with its number in ELF (elf(5)).
_EXIT = {
    # xor edi, edi; mov eax, 60; syscall
    "x86_64": (62, bytes.fromhex("31ffb83c0000000f05")),
    # mov x0, #0; mov x8, #93; svc #0
    "aarch64": (183, bytes.fromhex("000080d2a80b80d2010000d4")),
}
_HEADERS = 64 + 56
_BASE = 0x400000


def refusal() -> str:
    """Return the reason why this host cannot run containers; "" when it can.

    It runs one to find out, which takes a fraction of a second.
    """
    with tempfile.TemporaryDirectory(prefix="hotplate-container-") as name:
        directory = Path(name)
        try:
            _run(directory)
        except (HostError, MachineLostError) as error:
            return error.message
        except DeadlineExceeded as error:
            return str(error)
    return ""


def _run(directory: Path) -> None:
    import platform

    root = tiny_root(directory, platform.machine())
    config = ContainerConfig("trial", str(uuid.uuid4()), root, nonce="")
    with (
        segment.trial(directory / "network") as port,
        Alone([port]) as link,
        ContainerMachine(
            config, wiring=link, directory=directory / "machine", events=EventLog()
        ) as machine,
    ):
        machine.start()
        ended = machine.wait(Deadline(SECONDS, "a container to end"))
        if ended.status:
            raise HostError(f"the init of a container ended with {ended.status}")


def tiny_root(directory: Path, processor: str) -> Root:
    """Make a root file system whose init ends at once.

    :param directory: for its file.
    :param processor: as uname(2) has it.
    :raises HostError: when it cannot be made.
    """
    if processor not in _EXIT:
        raise HostError(f'there is no tiny root for the processor "{processor}"')
    tree = directory / "tree"
    for folder in ("usr/lib/systemd", "etc", "dev", "proc", "sys", "run", "tmp", "var"):
        (tree / folder).mkdir(parents=True)
    # nspawn boots only a folder that has it.
    (tree / "etc/os-release").write_text('ID=hotplate\nNAME="hotplate"\n')
    init = tree / "usr/lib/systemd/systemd"
    init.write_bytes(program(*_EXIT[processor]))
    init.chmod(0o755)
    file = directory / "root.ext4"
    done = subprocess.run(
        [
            find_tool("mkfs.ext4", besides=SYSTEM_PROGRAMS),
            *("-q", "-F", "-O", "^has_journal", "-d", tree, file, f"{ROOT_BYTES >> 10}k"),
        ],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise HostError(f"no file system could be made: {done.stderr.strip()}")
    return Root(file, 0, ROOT_BYTES, "ext4", "noload")


def program(machine: int, code: bytes) -> bytes:
    """Return a static program: an ELF header, one segment, the code.

    :param machine: the processor's number in ELF.
    """
    size = _HEADERS + len(code)
    header = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header += struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, _BASE + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment_ = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment_ + code
