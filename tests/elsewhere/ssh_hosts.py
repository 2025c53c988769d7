"""Hosts with OpenSSH's own server, each in network, mount and process namespaces of its own.

They use no ssh files of this host: users, keys and settings are theirs, ``/run`` and ``/etc/ssh``
are empty, and the home of the user of ``ssh`` is a folder of the test.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SECONDS = 600
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
#: All are user 0, the only one that can read the folders of a test; each has different rights.
USERS = ("root", "jump", "shut", "stranger")

CONFIG = """\
Port 22
Port 2222
HostKey {folder}/host_key
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
AuthorizedKeysFile {folder}/authorized_keys
MaxStartups 100
Match User shut
    AllowTcpForwarding no
Match User stranger
    AuthorizedKeysFile none
"""

# The first process of a host reads from the test: when the test ends, in whatever way, the
# namespaces end with all their processes.
BEGIN = """\
set -eu
mount -t tmpfs -o mode=755 none /run
mkdir -m 755 /run/sshd
for name in passwd group shadow; do mount --bind "$1/$name" "/etc/$name"; done
for name in hosts.allow hosts.deny; do
    [ ! -e "/etc/$name" ] || mount --bind /dev/null "/etc/$name"
done
[ ! -d /etc/ssh ] || mount -t tmpfs -o mode=755 none /etc/ssh
ip link set lo up
echo begun
shift
"$@" &
exec cat
"""


@dataclass
class Host:
    """One host.

    :ivar folder: its files.
    """

    name: str
    folder: Path
    process: subprocess.Popen[str]

    def run(self, *words: object, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a program there, to its end."""
        enter = ["nsenter", f"--target={self.process.pid}", "--net", "--mount", "--"]
        return subprocess.run(
            [*enter, *map(str, words)],
            env={"PATH": PATH, "HOME": str(self.folder / "home"), **more.pop("env", {})},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            **more,
        )

    @property
    def public_key(self) -> str:
        """Return the server's public key, type and key."""
        return " ".join((self.folder / "host_key.pub").read_text().split()[:2])

    def let_in(self, *public_keys: str) -> None:
        (self.folder / "authorized_keys").write_text("".join(f"{each}\n" for each in public_keys))

    @property
    def log(self) -> str:
        """Return the log of its server."""
        return (self.folder / "log").read_text()


class Lab:
    """Hosts, and cables between them."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._networks = itertools.count(1)

    def host(self, name: str, *, server: bool = True) -> Host:
        """Start a host, with or without an ssh server."""
        folder = self._folder / name
        (folder / "home" / ".ssh").mkdir(parents=True, mode=0o700)
        make_key(folder / "host_key")
        home = folder / "home"
        users = [f"{each}:x:0:0::{home}:/bin/sh" for each in USERS]
        users.append("sshd:x:65534:65534::/run/sshd:/usr/sbin/nologin")
        write(folder / "passwd", *users)
        write(folder / "group", "root:x:0:", "nogroup:x:65534:")
        write(folder / "shadow", *(f"{each}:*:19000:0:99999:7:::" for each in (*USERS, "sshd")))
        write(folder / "sshd_config", CONFIG.format(folder=folder).rstrip())
        write(folder / "authorized_keys")
        sshd = shutil.which("sshd", path=PATH) or "sshd"
        program = [sshd, "-D", "-e", "-f", folder / "sshd_config"] if server else ["true"]
        namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
        process = self._stack.enter_context(
            subprocess.Popen(
                [*namespaces, "sh", "-c", BEGIN, "sh", folder, *program],
                env={"PATH": PATH},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(folder / "log").open("w"),
                text=True,
            )
        )
        self._stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n", (folder / "log").read_text()
        return Host(name, folder, process)

    def connect(self, one: Host, other: Host) -> tuple[str, str]:
        """Connect two hosts by a cable; return their addresses on it."""
        number = next(self._networks)
        link = f"net{number}"
        ends = [f"{link} netns {each.process.pid}" for each in (one, other)]
        words = f"link add name {ends[0]} type veth peer name {ends[1]}".split()
        subprocess.run(["ip", *words], check=True, env={"PATH": PATH}, timeout=SECONDS)
        for last, host in enumerate((one, other), start=1):
            host.run("ip", "addr", "add", f"10.9.{number}.{last}/24", "dev", link, check=True)
            host.run("ip", "link", "set", link, "up", check=True)
        return f"10.9.{number}.1", f"10.9.{number}.2"


@contextlib.contextmanager
def lab(folder: Path) -> Iterator[Lab]:
    """Provide hosts while the context lasts; skip when this host has no namespaces."""
    if os.geteuid() != 0:
        pytest.skip("needs root for namespaces with users of their own")
    for program in ("sshd", "ssh", "ssh-keygen", "ip", "unshare", "nsenter"):
        if shutil.which(program, path=PATH) is None:
            pytest.skip(f"needs {program} on this host")
    trial = ["unshare", "--net", "--mount", "--pid", "--fork", "ip", "link", "add", "type", "veth"]
    tried = subprocess.run(trial, capture_output=True, text=True, env={"PATH": PATH})
    if tried.returncode:
        pytest.skip(f"this host gives no namespaces: {tried.stderr.strip()}")
    with contextlib.ExitStack() as stack:
        yield Lab(folder, stack)


def make_key(path: Path) -> str:
    """Make a key pair; return the public key."""
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path)]
    subprocess.run(words, check=True, env={"PATH": PATH}, timeout=SECONDS)
    path.chmod(0o600)
    return path.with_suffix(".pub").read_text().strip()


def write(path: Path, *lines: str) -> Path:
    """Write a file with permissions that ssh accepts, under any umask."""
    path.write_text("".join(f"{each}\n" for each in lines))
    path.chmod(0o600 if path.name != "passwd" else 0o644)
    return path


def log_in(client: Host, words: Mapping[str, object]) -> dict[str, Any]:
    """Log in from a host by hotplate's ways; return the result, see ``log_in_by_ways.py``."""
    program = Path(__file__).with_name("log_in_by_ways.py")
    done = client.run(
        *(sys.executable, "-P", program, json.dumps(dict(words), default=str)),
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)
