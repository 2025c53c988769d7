"""A container without systemd, which starts in a fraction of a second: a shell, static busybox.

Its init brings up its interfaces by DHCP, answers on the shell's socket, and takes the signal that
powers systemd off.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import tiny_guest
from stations import mac, subnet

from hotplate.container.machine import ContainerConfig, ContainerMachine
from hotplate.container.root import Root
from hotplate.container.trial import program
from hotplate.events.log import EventLog
from hotplate.guest.shell import Shell
from hotplate.machine.wiring import Cables
from hotplate.network.segment import Port, Segment
from hotplate.timing.deadline import Deadline

NONCE = "tiny-nonce"
READY = "tiny container is ready"
SECONDS = 90
ROOT_MIB = 32
LAYER_BYTES = 64 << 20
INIT_PATH = "usr/lib/systemd/systemd"

INIT = f"""\
#!/bin/sh
export PATH=/bin
# systemd's for a power off, SIGRTMIN+4.
trap 'echo "tiny container goes down"; exit 0' 38
(while :; do accept; done) 2>/dev/null &
exec 3<&-
ip link set lo up
for path in /sys/class/net/ens*; do dhcp ${{path##*/}}; done
echo '{READY}'
# A signal interrupts "wait" only.
while :; do sleep 1000 & wait $!; done
"""
SERVE = """\
#!/bin/sh
export PATH=/bin
# A program in the background has no standard input otherwise.
exec 4<&0
setsid sh /run/host/hotplate/shell <&4 4<&- &
"""
DHCP = """\
#!/bin/sh
ip link set $1 up
udhcpc -q -n -t 5 -T 1 -O search -O staticroutes -i $1 -s /bin/bound >/dev/null 2>&1
"""
#: Takes a connection from descriptor 3 and becomes SERVE with it; no applet of busybox does.
ACCEPT = (
    "6a035f31f631d26a2b580f05"  # accept(3, 0, 0)
    "89c389df31f66a21580f05"  # dup2(connection, 0)
    "89df6a015e6a21580f05"  # dup2(connection, 1)
    "89df6a03580f05"  # close(connection)
    "6a035f6a03580f05"  # close(3)
    "488d3d120000006a00574889e631d26a3b580f05"  # execve("/bin/serve", {"/bin/serve", 0}, 0)
    "6a3c580f05"  # exit()
)
X86_64 = 62


def plant(tree: Path, init: str = INIT) -> Path:
    """Write the files of the root into a folder; return it."""
    for name in (
        "bin",
        "etc",
        "dev",
        "proc",
        "sys",
        "run",
        "tmp",
        "var",
        "root",
        "usr/lib/systemd",
    ):
        (tree / name).mkdir(parents=True, exist_ok=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, tree / "bin/busybox")
    listed = subprocess.run([busybox, "--list"], check=True, capture_output=True, text=True)
    for applet in {*listed.stdout.split()} - {"busybox"}:
        (tree / "bin" / applet).symlink_to("busybox")
    (tree / "etc/os-release").write_text("ID=tiny\n")
    (tree / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    programs = {
        INIT_PATH: init.encode(),
        "bin/serve": SERVE.encode(),
        "bin/dhcp": DHCP.encode(),
        "bin/bound": tiny_guest.DHCP.encode(),
        "bin/accept": program(X86_64, bytes.fromhex(ACCEPT) + b"/bin/serve\0"),
    }
    for name, content in programs.items():
        (tree / name).write_bytes(content)
        (tree / name).chmod(0o755)
    return tree


def make_ext4(tree: Path, file: Path, *options: str, mib: int = ROOT_MIB) -> Path:
    """Make a file system with the files of a folder; return its file."""
    command = ["mkfs.ext4", "-q", "-F", *options, "-d", tree, file, f"{mib}M"]
    subprocess.run(command, check=True, capture_output=True, env=SYSTEM)
    return file


SYSTEM = {**os.environ, "PATH": f"/usr/sbin:/sbin:{os.environ['PATH']}"}


def root_of(file: Path) -> Root:
    """Return a file with nothing but an ext4 file system as a root."""
    return Root(file, 0, file.stat().st_size, "ext4", "noload")


@dataclass
class Made:
    """A container from the factory."""

    machine: ContainerMachine
    wiring: Cables
    events: EventLog
    ports: list[Port] = field(default_factory=list)

    def kinds(self) -> list[str]:
        """Return the kinds of the machine's events so far."""
        return [event.kind for event in self.events if event.source == "machine"]


@contextlib.contextmanager
def containers(root: Root, place: Path) -> Iterator[Callable[..., Made]]:
    """Make containers below a directory, on one network; options go to the configuration."""
    with contextlib.ExitStack() as stack:
        segment = stack.enter_context(
            Segment("private", subnet(), directory=place / "network", services=(80,))
        )
        numbers = iter(range(5, 250))

        def factory(
            *, name: str = "tiny", interfaces: int = 1, start: bool = True, **options: Any
        ) -> Made:
            ports = [new_port(segment, next(numbers)) for _ in range(interfaces)]
            link = stack.enter_context(Cables(ports))
            settings: dict[str, Any] = {
                "name": name,
                "uuid": str(uuid.uuid4()),
                "root": root,
                "nonce": NONCE,
                "memory_mib": 128,
                "layer_bytes": LAYER_BYTES,
            } | options
            events = EventLog()
            machine = ContainerMachine(
                ContainerConfig(**settings),
                wiring=link,
                directory=place / name,
                events=events,
                server_id=name,
            )
            stack.enter_context(machine)
            if start:
                machine.start()
            return Made(machine, link, events, ports)

        yield factory


def new_port(segment: Segment, number: int) -> Port:
    """Return a port of the network with the address 10.0.0.NUMBER."""
    return segment.port(mac=mac(number), addresses=[IPv4Address(f"10.0.0.{number}")])


def attached(machine: ContainerMachine, seconds: float = SECONDS) -> Shell:
    """Return a shell in the container, once it answers."""
    shell = Shell(machine.shell_channel, nonce=NONCE)
    shell.attach(Deadline(seconds, "the container's shell"))
    return shell


def addresses(shell: Shell) -> dict[str, str]:
    """Return the container's addresses by the names of its interfaces."""
    lines = shell.run("ip -4 -o address show").text.splitlines()
    return {line.split()[1]: line.split()[3] for line in lines if line.split()[1] != "lo"}


def of_namespace(kind: str, namespace: str, *, before: float = 0.0) -> Sequence[int]:
    """Return the living processes in a namespace.

    :param kind: ``mnt``, ``net`` or ``user``.
    :param namespace: the target of its link in /proc.
    :param before: only those that were started before, in seconds since the host's boot: another
        test's namespace may get the number of one that has gone.
    """
    found = []
    ticks = os.sysconf("SC_CLK_TCK")
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The 22nd field is the start (proc(5)); the second, a name, ends with the last bracket.
            start = int((folder / "stat").read_text().rpartition(")")[2].split()[19]) / ticks
            new = before and start > before
            if not new and str((folder / "ns" / kind).readlink()) == namespace:
                found.append(int(folder.name))
    return found
