"""Hostile answers of a guest on its channels, over a socket pair in the place of QEMU."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import paramiko
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotplate.errors import MachineLostError
from hotplate.guest import ssh, wire
from hotplate.guest.base import OUTPUT_BYTES, GuestReplyError
from hotplate.guest.shell import Shell
from hotplate.timing.deadline import Deadline, DeadlineExceeded


@contextlib.contextmanager
def hostile(answer: Callable[[socket.socket, bytes], None]) -> Iterator[socket.socket]:
    """Yield our end of a channel to a guest that meets each command with ``answer``."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while data := theirs.recv(1 << 16):
                answer(theirs, data)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield ours
    finally:
        for each in (ours, theirs):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        thread.join()
        ours.close()
        theirs.close()


def reply(words: str, then: bytes = b"") -> Callable[[socket.socket, bytes], None]:
    """Return an answer of a header line with these words after the request's token."""

    def answer(theirs: socket.socket, data: bytes) -> None:
        token = re.findall(rb"\b[0-9a-f]{16}\b", data)[0].decode()
        theirs.sendall(f"\nhotplate-reply {token} {words}\n".encode() + then)

    return answer


def stream(data: bytes) -> Callable[[socket.socket, bytes], None]:
    """Return an answer that repeats the same data endlessly."""

    def answer(theirs: socket.socket, _: bytes) -> None:
        while True:
            theirs.sendall(data)

    return answer


def run(channel: socket.socket, seconds: float = 1.0) -> None:
    # Without the grace period, so that the tests are short.
    shell = Shell(channel, nonce="n")
    shell._exchange("{token}", Deadline(seconds, "the answer"))


@pytest.mark.parametrize(
    "data", [b"x" * 65536, b"\n" * 65536, b"hotplate-reply a b\n" * 100], ids=["x", "lines", "odd"]
)
def test_shell_keeps_its_deadline_while_data_comes(data: bytes):
    with hostile(stream(data)) as channel, pytest.raises(DeadlineExceeded, match="the answer"):
        run(channel)


def test_shell_that_greets_endlessly_is_given_up():
    with hostile(stream(b"hotplate-hello\n")) as channel, pytest.raises(DeadlineExceeded):
        Shell(channel, nonce="n").attach(Deadline(1.0, "the shell"))


def test_shell_keeps_its_deadline_while_the_output_comes():
    def drip(theirs: socket.socket, data: bytes) -> None:
        reply(f"0 {OUTPUT_BYTES} 0")(theirs, data)
        gone = threading.Event()
        while not gone.wait(0.01):
            theirs.sendall(b"x")

    with hostile(drip) as channel, pytest.raises(DeadlineExceeded):
        run(channel)


@pytest.mark.parametrize(
    "words",
    [
        "0 99999999999 0",
        "0 -5 -5",
        "x y z",
        "0 0",
        "0 0 0 0",
        "0 \xb2 0",
        "999 0 0",
        "0 16777217 0",
    ],
)
def test_malformed_answer_raises_a_reply_error(words: str):
    with hostile(reply(words)) as channel, pytest.raises(GuestReplyError, match="the guest"):
        run(channel, 60)


def test_both_outputs_together_are_bounded():
    with (
        hostile(reply(f"0 {OUTPUT_BYTES} 1")) as channel,
        pytest.raises(GuestReplyError, match="at most 0 are taken"),
    ):
        run(channel, 60)


def test_rest_of_an_earlier_answer_is_skipped():
    def answer(theirs: socket.socket, data: bytes) -> None:
        theirs.sendall(b"\0" * 100_000 + b"hotplate-reply x 0 1 1\nrest")
        reply("0 3 0", b"out")(theirs, data)

    with hostile(answer) as channel:
        shell = Shell(channel, nonce="n")
        assert shell._exchange("{token}", Deadline(30, "it"))[1] == b"out"


def test_shell_with_nonsense_answers_is_given_up():
    with hostile(reply("0 x 0")) as channel, pytest.raises(GuestReplyError):
        Shell(channel, nonce="n").attach(Deadline(30, "the shell"))


def test_guest_that_reads_nothing_is_given_up():
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(DeadlineExceeded):
        wire.Channel(ours, off="off").send(b"x" * (8 << 20), Deadline(0.5, "it to be taken"))


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_random_bytes_are_read_as_bounded_lines_and_numbers(data: bytes):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        channel = wire.Channel(ours, off="off")
        try:
            while True:
                line = channel.line(Deadline(5, "a line"), limit=64)
                assert len(line) <= 64
                for word in line.split():
                    with contextlib.suppress(GuestReplyError):
                        assert 0 <= wire.number(word, what="bytes", limit=99) <= 99
        except MachineLostError as error:
            assert str(error) == "off"


class EndsItsOutputOnly(paramiko.ServerInterface):
    """Accepts any login, and ends the output of each command without a status."""

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        channel.shutdown_write()
        return True


class StartsNothing(EndsItsOutputOnly):
    """Never answers a command, like a guest whose reply was lost."""

    def __init__(self, over: threading.Event) -> None:
        self._over = over

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return not self._over.wait(60)


@contextlib.contextmanager
def served(interface: paramiko.ServerInterface) -> Iterator[ssh.Ssh]:
    """Yield a connection to a paramiko server."""
    ours, theirs = socket.socketpair()
    server = paramiko.Transport(theirs)
    server.add_server_key(paramiko.ECDSAKey.generate())
    server.start_server(event=threading.Event(), server=interface)
    client = ssh.Ssh(lambda: ours, keys=[paramiko.ECDSAKey.generate()])
    try:
        client.attach(Deadline(60, "the server"))
        yield client
    finally:
        client.close()
        server.close()


def test_ssh_keeps_its_deadline_for_an_unanswered_command(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(ssh, "GRACE_SECONDS", 1.0)
    over = threading.Event()
    with served(StartsNothing(over)) as client:
        try:
            with pytest.raises(DeadlineExceeded, match='the command "true" in the guest'):
                client.run("true", timeout=1)
        finally:
            over.set()


@pytest.mark.parametrize("given", [b"", bytes(4_000_000)], ids=["nothing", "much"])
def test_ssh_keeps_its_deadline_for_a_command_without_a_status(
    given: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ssh, "GRACE_SECONDS", 1.0)
    with (
        served(EndsItsOutputOnly()) as client,
        pytest.raises(DeadlineExceeded, match='the command "true" in the guest'),
    ):
        client.run("true", timeout=1, stdin=given)


def test_name_that_is_no_utf8_is_sent_as_its_bytes():
    """It is the name of a file of this host, as Python has it."""
    sent = []

    def answer(theirs: socket.socket, data: bytes) -> None:
        sent.append(data)
        reply("0 0 0")(theirs, data)

    with hostile(answer) as channel:
        shell = Shell(channel, nonce="n")
        shell._exchange("rm \udcff {token}", Deadline(60, "the answer"))
    assert sent[0].startswith(b"rm \xff ")


CLOSES = """\
import socket, paramiko
from hotplate.guest.ssh import Ssh
from hotplate.timing.deadline import Deadline, DeadlineExceeded
kept = []
def connect():
    ours, theirs = socket.socketpair()
    theirs.shutdown(socket.SHUT_WR)
    kept.append(theirs)
    return ours
try:
    Ssh(connect, keys=[paramiko.ECDSAKey.generate()]).attach(Deadline(0.1, "ssh"))
except DeadlineExceeded:
    print("nobody answers")
"""


def test_server_that_closes_each_connection_prints_no_traceback():
    """paramiko's own log would: Transport.run() logs an error."""
    done = subprocess.run([sys.executable, "-c", CLOSES], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("nobody answers\n", "")
