"""One server's ways in, on a machine that is not there."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hotplate.guest import ssh as ssh_module
from hotplate.machine.config import MachineConfig
from hotplate.testbed import server as server_module
from hotplate.testbed.server import Server

KEY = "ssh-ed25519 AAAAC3 it's mine"


class HostShell:
    """Runs what the guest is asked to on this host, in a home of root's of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, command):
        subprocess.run(
            ["sh", "-c", command.replace("/root/", f"{self.root}/")], check=True, timeout=30
        )


class PlayedSsh:
    """Remembers how it was made."""

    def __init__(self, connect, *, key):
        self.connect, self.key = connect, key
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


def test_a_key_comes_first_and_once(server, tmp_path):
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "authorized_keys").write_text('command="echo no" ssh-rsa A\n')
    server.let_root_in(KEY, seconds=1)
    server.let_root_in(KEY, seconds=1)
    assert keys(tmp_path) == [KEY, 'command="echo no" ssh-rsa A']


def test_ssh_is_one_connection_until_it_is_lost(server, tmp_path):
    first = server.ssh()
    assert server.ssh() is first
    assert first.connect() == "port 22"
    assert keys(tmp_path) == [f"{first.key.get_name()} {first.key.get_base64()} hotplate"]
    first.is_alive = False
    assert server.ssh() is not first


def test_a_boot_is_pictured_by_a_machine_of_its_own(monkeypatch, tmp_path):
    class PlayedMachine:
        """Says that it stops as soon as it is started."""

        def __init__(self, config, *, events, **options):
            self.config, self.events, self.options = config, events, options

        def __enter__(self):
            return self

        def __exit__(self, *_):
            done.append(self)

        def start(self):
            self.events.emit("machine", "panic")

        def screenshot(self, picture):
            picture.write_bytes(b"a picture")

    done = []
    monkeypatch.setattr(server_module, "Machine", PlayedMachine)
    config = MachineConfig(name="web", uuid="u")
    first = SimpleNamespace(
        config=config,
        wiring="wiring",
        accelerator="tcg",
        server_id="id",
        kill=lambda: done.append(0),
    )
    made = Server(SimpleNamespace(name="web"), first, nonce="n", owned=ExitStack())
    made.picture_boot(
        tmp_path / "screen.png",
        directory=tmp_path,
        until=lambda event: event.kind == "panic",
        seconds=60,
    )
    assert (tmp_path / "screen.png").read_bytes() == b"a picture"
    assert done[0] == 0
    assert done[1].config == replace(config, display=True)
    assert done[1].options["wiring"] == "wiring"


def test_ssh_ends_with_the_server(server):
    way = server.ssh()
    server.close()
    assert way.closed
