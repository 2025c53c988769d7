"""Logging in to the servers of a cloud by ssh: accepted keys and connections."""

from __future__ import annotations

import io
import sys

import paramiko
import pytest
from cases import GOOD, ends, expecting
from ssh_server import ssh_config, ssh_server

from hotplate.elsewhere.ways import WayOptions, Ways
from hotplate.errors import SubjectError, UsageError
from hotplate.guest.base import new_key
from hotplate.timing.deadline import Deadline

FORWARD = """\
import os, socket, sys, threading
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def out():
    while data := peer.recv(65536):
        os.write(1, data)
threading.Thread(target=out, daemon=True).start()
while data := os.read(0, 65536):
    peer.sendall(data)
"""
HAND_OVER = """\
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
socket.send_fds(socket.socket(fileno=1), [b"x"], [peer.fileno()])
"""


def key() -> paramiko.PKey:
    return paramiko.Ed25519Key.from_private_key(io.StringIO(new_key()))


def soon() -> Deadline:
    return Deadline(30, "ssh")


@pytest.mark.parametrize("root", [True, False], ids=["root", "another user"])
def test_key_pair_is_accepted_for_root_or_another_user(tmp_path, root):
    mine = key()
    with ssh_server(lambda: {mine.get_base64()}, root=root) as port:
        options = WayOptions(config=ssh_config(tmp_path / "config", port))
        with Ways(options, key=mine) as ways:
            way, by_key_pair = ways.log_in("192.0.2.7", soon())
            assert (way.user, by_key_pair) == ("root" if root else "debian", True)
            assert way.run("echo hello").text == "hello"
            way.close()


def test_key_of_the_config_is_tried(tmp_path):
    other = new_key()
    (tmp_path / "id").write_text(other)
    good = paramiko.Ed25519Key.from_private_key(io.StringIO(other)).get_base64()
    with ssh_server(lambda: {good}, root=True) as port:
        config = ssh_config(tmp_path / "config", port, f'IdentityFile "{tmp_path}/id"')
        with Ways(WayOptions(config=config), key=key()) as ways:
            way, by_key_pair = ways.log_in("192.0.2.7", soon())
            assert not by_key_pair
            way.close()


def test_refused_key_of_the_config_does_not_delay_the_login(tmp_path):
    """It used to be offered again and again, until the time was over."""
    mine = key()
    (tmp_path / "id").write_text(new_key())
    with ssh_server(lambda: {mine.get_base64()}, root=False) as port:
        config = ssh_config(tmp_path / "config", port, f'IdentityFile "{tmp_path}/id"')
        with Ways(WayOptions(config=config), key=mine) as ways:
            deadline = Deadline(120, "ssh")
            way, by_key_pair = ways.log_in("192.0.2.7", deadline)
            assert (way.user, by_key_pair) == ("debian", True)
            assert not deadline.passed
            way.close()


def test_server_that_refuses_all_keys_fails(tmp_path):
    with ssh_server(set, root=True) as port:
        options = WayOptions(config=ssh_config(tmp_path / "config", port), user="me")
        with Ways(options, key=key()) as ways, pytest.raises(SubjectError, match='"me"'):
            ways.log_in("192.0.2.7", Deadline(1, "ssh"))


@pytest.mark.parametrize("by_descriptor", [False, True], ids=["pipe", "ProxyUseFdpass"])
def test_proxy_command_carries_the_connection(tmp_path, by_descriptor):
    mine = key()
    program = tmp_path / "proxy.py"
    program.write_text(HAND_OVER if by_descriptor else FORWARD)
    with ssh_server(lambda: {mine.get_base64()}, root=True) as port:
        config = tmp_path / "config"
        config.write_text(
            "Host *\n"
            f"ProxyCommand {sys.executable} {program} {port} %n %h\n"
            f"ProxyUseFdpass {'yes' if by_descriptor else 'no'}\n"
        )
        with Ways(WayOptions(config=config, environment={"PATH": "/bin"}), key=mine) as ways:
            way, _ = ways.log_in("192.0.2.7", soon())
            assert way.run("echo hello").text == "hello"
            way.close()


def test_unreadable_ssh_config_is_refused(tmp_path):
    (tmp_path / "config").write_bytes(b"Host *\n\xff\xfe\x00nonsense")
    with pytest.raises(UsageError, match="cannot be read"):
        Ways(WayOptions(config=tmp_path / "config"), key=key())


@pytest.mark.slow
def test_expectations_are_checked_over_ssh(cloud, tmp_path):
    """testinfra over ssh, with the key pair in Nova."""
    cloud.roles["web"] = GOOD
    wanted = {"commands": {"echo hello": {"stdout": "hello"}}, "files": {"/etc/passwd": "present"}}
    with ssh_server(cloud.keys, root=False) as port:
        config = ("--ssh-config", ssh_config(tmp_path / "config", port))
        ends(cloud.try_it("-t", expecting(cloud.folder, **wanted), *config), 0)
        stages = {each["stage"]: each for each in cloud.verdict()["stages"]}
        assert stages["metadata served"]["evidence"] == 'ssh let "debian" in by the key pair'
        wanted["files"]["/nowhere"] = "present"
        done = cloud.try_it("-t", expecting(cloud.folder, **wanted), *config)
    ends(done, 1, 'the file "/nowhere" does not exist')
