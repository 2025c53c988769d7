"""Wirings without a guest: chosen by trying, closed, and isolated from each other."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import hotplate
from hotplate.errors import HostError
from hotplate.machine import wiring

CHOOSE = """
from hotplate.machine import wiring
with wiring.choose([80, 8000]) as chosen:
    print(chosen.name, "|", chosen.reason, "|", sorted(chosen.listeners))
"""


def namespace(process: int | str) -> str:
    return str(Path(f"/proc/{process}/ns/net").readlink())


def run(*before: str) -> str:
    return subprocess.run(
        [*before, sys.executable, "-c", CHOOSE], capture_output=True, text=True, check=True
    ).stdout


def test_namespace_is_chosen_when_it_works() -> None:
    assert run().startswith("namespace | ")


@pytest.mark.root
def test_ordinary_user_gets_a_namespace() -> None:
    system = "/usr/bin/python3"
    version = subprocess.run(
        [system, "-c", "import sys; print(sys.version_info >= (3, 11))"],
        capture_output=True,
        text=True,
    ).stdout
    if version.strip() != "True":
        pytest.skip(f"{system} is older than the harness's oldest Python")
    with tempfile.TemporaryDirectory() as name:
        # This user can read it, unlike perhaps this checkout and this Python.
        directory = Path(name)
        directory.chmod(0o755)
        shutil.copytree(Path(hotplate.__file__).parent, directory / "hotplate")
        shown = subprocess.run(
            ["setpriv", "--reuid=65534", "--clear-groups", system, "-c", CHOOSE],
            cwd=directory,
            capture_output=True,
            text=True,
        )
    assert "user and network namespace" in shown.stdout, shown.stderr


@pytest.mark.tool("socat")
def test_guestfwd_is_chosen_with_a_reason_without_namespaces() -> None:
    shown = run(
        "unshare", "-Ur", "sh", "-c", 'echo 0 >/proc/sys/user/max_net_namespaces; exec "$@"', "sh"
    )
    assert shown.startswith("guestfwd | ")
    assert "namespace: this host does not allow a network namespace" in shown
    assert "[80, 8000]" in shown


def test_two_namespaces_have_the_same_ports_and_the_host_has_none() -> None:
    with wiring.choose([8004]) as one, wiring.choose([8004]) as two:
        assert one.listeners[8004].getsockname() == two.listeners[8004].getsockname()
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", 8004)) != 0
        inside = [namespace(link.keeper.pid) for link in (one, two)]
        assert len({*inside, namespace("self")}) == 3


@pytest.mark.tool("socat")
def test_guestfwd_leaves_no_files() -> None:
    with wiring.choose([80], wanted="guestfwd") as link:
        path = Path(link.listeners[80].getsockname())
        assert path.is_socket()
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert "restrict=on" in link.netdev()
        with pytest.raises(HostError, match="cannot be reached"):
            link.connect(22)
    assert not path.parent.exists()


@pytest.mark.tool("socat")
def test_files_of_a_killed_harness_are_removed_by_the_next(tmp_path, monkeypatch) -> None:
    """After SIGKILL nothing is cleaned up; a live harness keeps its sockets."""
    monkeypatch.setattr(wiring.tempfile, "tempdir", str(tmp_path))
    left = tmp_path / f"{wiring.SOCKETS}left"
    left.mkdir(mode=0o700)
    (left / "80").touch()
    with wiring.choose([80], wanted="guestfwd") as first:
        assert not left.exists()
        with wiring.choose([80], wanted="guestfwd"):
            assert Path(first.listeners[80].getsockname()).is_socket()
    assert list(tmp_path.iterdir()) == []


def test_connection_to_a_closed_port_is_a_connection_error() -> None:
    with (
        wiring.choose([80], wanted="namespace") as link,
        pytest.raises(ConnectionError, match="port 22"),
    ):
        link.connect(22)


def test_unknown_wiring_is_refused() -> None:
    with pytest.raises(HostError, match="no way to wire"), wiring.choose([80], wanted="carrier"):
        pass


def test_temporary_directory_with_a_space_is_refused_with_a_hint(tmp_path, monkeypatch) -> None:
    directory = tmp_path / "a b"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    with (
        pytest.raises(HostError, match="too odd a name for sockets") as raised,
        wiring.choose([80], wanted="guestfwd"),
    ):
        pass
    assert raised.value.hint == "export TMPDIR=/tmp"
