"""The connections to one server, with a played machine."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotplate.guest import shell as shell_module
from hotplate.guest import ssh as ssh_module
from hotplate.guest.base import BOOT_ID
from hotplate.testbed import server as server_module
from hotplate.testbed.server import Server
from hotplate.timing.deadline import Deadline

NONCE = "5f0c4a8e"
KEY = "ssh-ed25519 AAAAC3 it's mine"


class HostShell:
    """Runs the guest's commands on this host, with a home directory of its own for root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, command):
        subprocess.run(
            ["sh", "-c", command.replace("/root/", f"{self.root}/")], check=True, timeout=120
        )


class PlayedSsh:
    """An ssh connection that records its arguments."""

    def __init__(self, connect, *, keys):
        self.connect, self.keys = connect, keys
        self.is_alive = False
        self.closed = False

    def attach(self, deadline):
        self.is_alive = True

    def close(self):
        self.closed = True


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(ssh_module, "Ssh", PlayedSsh)
    wiring = SimpleNamespace(connect=lambda port: f"port {port}")
    made = Server(
        SimpleNamespace(name="web"), SimpleNamespace(wiring=wiring), nonce="n", owned=ExitStack()
    )
    monkeypatch.setattr(made, "shell", lambda **_: HostShell(tmp_path))
    return made


def keys(tmp_path):
    path = tmp_path / ".ssh" / "authorized_keys"
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_text().splitlines()


def test_key_is_added_first_and_once(server, tmp_path):
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "authorized_keys").write_text('command="echo no" ssh-rsa A\n')
    server.let_root_in(KEY, seconds=1)
    server.let_root_in(KEY, seconds=1)
    assert keys(tmp_path) == [KEY, 'command="echo no" ssh-rsa A']


def test_ssh_is_one_connection_until_it_is_lost(server, tmp_path):
    first = server.ssh()
    assert server.ssh() is first
    assert first.connect() == "port 22"
    [key] = first.keys
    assert keys(tmp_path) == [f"{key.get_name()} {key.get_base64()} hotplate"]
    first.is_alive = False
    assert server.ssh() is not first


def test_boot_picture_is_taken_by_a_new_machine(tmp_path):
    class PlayedMachine:
        """A machine that reports its stop as soon as it is started."""

        def __init__(self, directory, events):
            self.directory, self.events = directory, events

        def __enter__(self):
            return self

        def __exit__(self, *_):
            done.append(self)

        def start(self):
            self.events.emit("machine", "panic")

        def screenshot(self, picture):
            picture.write_bytes(b"a picture")

    done = []
    first = SimpleNamespace(kill=lambda: done.append(0), with_screen=PlayedMachine)
    made = Server(SimpleNamespace(name="web"), first, nonce="n", owned=ExitStack())
    made.picture_boot(
        tmp_path / "screen.png",
        directory=tmp_path,
        until=lambda event: event.kind == "panic",
        seconds=60,
    )
    assert (tmp_path / "screen.png").read_bytes() == b"a picture"
    assert done[0] == 0
    assert done[1].directory == tmp_path


def test_ssh_ends_with_the_server(server):
    way = server.ssh()
    server.close()
    assert way.closed


class RebootingGuest(threading.Thread):
    """The guest's end of the shell channel; goes down in the middle of an answer."""

    def __init__(self, channel):
        super().__init__(daemon=True)
        self.channel = channel
        self.boot = "boot-1"

    def run(self):
        with self.channel, self.channel.makefile("rb") as lines:
            for line in lines:
                self.answer(line.decode())

    def answer(self, line):
        token = re.search(r'\\n(?:%s)?" ([0-9a-f]{16}) ', line)[1]
        text = NONCE if "timeout -s KILL" not in line else self.boot if "boot_id" in line else ""
        # Long enough for the new shell's first line to be read as part of it.
        size = 40 if text == "going down" else len(text)
        head = f"\nhotplate-reply {token} 0 {size} 0\n"
        if self.boot == "going down" and text == self.boot:
            # The shell was killed between the reply's header and its text.
            self.boot = "boot-2"
            self.channel.sendall(f"{head}\nhotplate-hello\n".encode())
            return
        self.channel.sendall((head + text).encode())
        if "systemctl --no-block reboot" in line:
            self.boot = "going down"


def test_guest_that_goes_down_within_an_answer_is_asked_again(monkeypatch):
    monkeypatch.setattr(server_module, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(shell_module, "GRACE_SECONDS", 0.3)
    ours, theirs = socket.socketpair()
    guest = RebootingGuest(theirs)
    guest.start()
    machine = SimpleNamespace(pid=1, shell_channel=ours, running=True)
    server = Server(SimpleNamespace(name="web"), machine, nonce=NONCE, owned=ExitStack())
    with ours:
        server.reboot(Deadline(120, "the reboot"))
        assert server.shell().run(BOOT_ID).text == "boot-2"
    guest.join(60)
