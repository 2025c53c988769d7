"""Tests of each connection on a real guest: shell channel, ssh."""

from __future__ import annotations

import os
import time
from pathlib import Path

import paramiko
import pytest

from hotplate.errors import MachineLostError, SubjectError
from hotplate.guest import testinfra_backend
from hotplate.guest.base import CommandError, Guest
from hotplate.guest.shell import Shell
from hotplate.guest.ssh import Ssh
from hotplate.machine.qemu import QemuMachine
from hotplate.timing.deadline import Deadline, DeadlineExceeded

pytestmark = [pytest.mark.boots, pytest.mark.network, pytest.mark.tool("qemu-system-x86_64")]


def test_run_returns_status_and_both_outputs(guest: Guest) -> None:
    result = guest.run("echo out; echo err >&2; exit 3")
    assert (result.rc, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    with pytest.raises(CommandError, match="ended with status 3: err"):
        result.check()
    assert guest.run("id -u").text == "0"


def test_words_are_quoted_and_text_is_not(guest: Guest) -> None:
    odd = "a b 'c' \"d\" $HOME `id` \\ *\nsecond line\t\u00e4"
    assert guest.run(["printf", "%s", odd]).stdout == odd.encode()
    assert guest.run(["printf", "%s", "\udcff"]).stdout == b"\xff"
    assert guest.run("x=1; for i in 1 2; do\necho $i$x\ndone").text == "11\n21"


def test_syntax_error_affects_only_its_command(guest: Guest) -> None:
    assert guest.run("if then ((").rc != 0
    assert guest.run("echo still here").text == "still here"


def test_standard_input_is_empty(guest: Guest) -> None:
    assert guest.run("cat; echo end", timeout=10).text == "end"


def test_bytes_are_copied_unchanged(guest: Guest) -> None:
    data = bytes(range(256)) * 3 + b"\nhotplate-reply x 0 0 0\nhotplate-hello\n" + b"\0" * 10
    guest.copy_in(data, "/tmp/bytes")
    assert guest.copy_out("/tmp/bytes") == data
    assert guest.run("cat /tmp/bytes; cat /tmp/bytes >&2").stdout == data


def test_two_megabytes_are_copied_both_ways(guest: Guest, tmp_path: Path) -> None:
    data = os.urandom(2_000_000)
    (tmp_path / "big").write_bytes(data)
    began = time.monotonic()
    guest.copy_in(tmp_path / "big", "/tmp/big", mode=0o600)
    between = time.monotonic()
    assert guest.copy_out("/tmp/big") == data
    print(f"in {between - began:.2f} s, out {time.monotonic() - between:.2f} s")
    assert guest.run("stat -c %a /tmp/big").text == "600"
    result = guest.run("cat /tmp/big >&2; cat /tmp/big")
    assert (len(result.stdout), len(result.stderr)) == (2_000_000, 2_000_000)


def test_missing_file_is_an_error(guest: Guest) -> None:
    with pytest.raises(CommandError, match="/no/such/file"):
        guest.copy_out("/no/such/file")
    # More than the connection buffers before it is read.
    for data in (b"x", bytes(4_000_000)):
        with pytest.raises(CommandError, match="/no/such/folder/file"):
            guest.copy_in(data, "/no/such/folder/file")


def test_hanging_command_is_killed(guest: Guest) -> None:
    with pytest.raises(DeadlineExceeded, match='"exec sleep 1001"'):
        guest.run("exec sleep 1001", timeout=1)
    assert guest.run("echo on").text == "on"
    assert guest.run("ps | grep -c '[s]leep 1001'").text == "0"


def test_signal_becomes_a_status(guest: Guest) -> None:
    assert guest.run("kill -TERM $$").rc in (143, -15)


def test_background_process_does_not_delay_the_answer(guest: Guest) -> None:
    pid = guest.run("sleep 1002 >/dev/null 2>&1 & echo $!").text
    # The process is still there.
    assert guest.run(f"kill {pid}").rc == 0


def test_time_can_be_set(shell: Shell) -> None:
    now = time.time()
    shell.set_time(1_900_000_000.5)
    assert 0 <= int(shell.run("date +%s").text) - 1_900_000_000 < 20
    shell.set_time(now)


def test_testinfra_host_runs_commands(guest: Guest) -> None:
    host = testinfra_backend.testinfra_host(lambda: guest)
    guest.copy_in(b"hello world \xc3\xa4\n", "/tmp/motd", mode=0o640)
    file = host.file("/tmp/motd")
    assert file.exists
    assert file.is_file
    assert file.mode == 0o640
    assert file.user == "root" or file.uid == 0
    assert file.contains("hello")
    assert file.content_string == "hello world \u00e4\n"
    assert not host.file("/tmp/absent").exists
    assert host.run("exit 4").rc == 4
    assert host.check_output("echo %s", "a b") == "a b"


def test_testinfra_reconnects_after_a_loss(shell: Shell) -> None:
    made: list[Shell] = []

    class Lost(Shell):
        """A connection to a machine that is off."""

    def connect() -> Shell:
        made.append(shell if made else Lost(_closed(), nonce=""))
        return made[-1]

    host = testinfra_backend.testinfra_host(connect)
    with pytest.raises(MachineLostError):
        host.run("true")
    assert host.run("true").rc == 0
    assert len(made) == 2


def _closed() -> object:
    import socket

    ours, theirs = socket.socketpair()
    theirs.close()
    return ours


def test_ssh_refuses_another_key(running: QemuMachine, ssh: Ssh) -> None:
    other = Ssh(lambda: running.wiring.connect(22), keys=[paramiko.ECDSAKey.generate()])
    with pytest.raises(SubjectError, match='does not let "root" in'):
        other.attach(Deadline(3, "ssh"))
    assert ssh.run("true").rc == 0


def test_command_gets_its_input(shell: Shell) -> None:
    data = bytes(range(256)) * 500
    assert shell.run("cat", stdin=data).check().stdout == data
    assert shell.run("ls /run/hotplate-shell").text.split() == ["err", "nonce", "out"]


def test_command_may_write_while_it_reads(ssh: Ssh) -> None:
    # Both directions buffer two megabytes, then one waits for the other.
    data = bytes(range(256)) * (5_000_000 // 256)
    assert ssh.run("cat; echo end >&2", stdin=data).check().stdout == data


def test_shell_identifies_its_guest_by_the_nonce(running: QemuMachine, shell: Shell) -> None:
    assert shell.run("true").rc == 0
    with pytest.raises(MachineLostError, match="not the one that was started"):
        Shell(running.shell_channel, nonce="guessed").attach(Deadline(10, "the shell"))
