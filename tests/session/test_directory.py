"""A session: one owner of its directory, requests with descriptors, and clean ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotplate.errors import HostError, MachineLostError, SubjectError, UsageError
from hotplate.session.channel import Control, in_memory
from hotplate.session.directory import SessionDirectory
from hotplate.timing.deadline import Deadline


@pytest.fixture
def directory(tmp_path):
    directory = SessionDirectory(tmp_path / "session")
    with directory.claim():
        directory.write("session.json", "{}")
        yield directory


def while_it_runs(control: Control, client: Callable[[], Any]) -> Any:
    """Run the control in this thread, which gets signals, and its client in another."""
    result: list[Any] = []

    def beside() -> None:
        try:
            result.append(client())
        finally:
            control.end()

    thread = threading.Thread(target=beside)
    thread.start()
    control.run()
    thread.join(30)
    assert result, "the client failed"
    return result[0]


def test_directory_has_one_owner_until_that_ends_or_removes_it(tmp_path):
    other = SessionDirectory(tmp_path / "other")
    with other.claim():
        with pytest.raises(UsageError, match="already runs"), other.claim():
            pass
        assert other.is_claimed()
    assert not other.is_claimed()
    with other.claim():
        # The end of one session removes the directory that another is about to own.
        other.write("session.json", "{}")
        other.remove()
        with other.claim(), pytest.raises(UsageError, match="already runs"), other.claim():
            pass


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_directory_writable_by_others_is_refused(tmp_path, mode):
    """A user who can write there can put a key of their own there."""
    (tmp_path / "session").mkdir()
    (tmp_path / "session").chmod(mode)
    with (
        pytest.raises(UsageError, match="not yours alone") as refused,
        SessionDirectory(tmp_path / "session").claim(),
    ):
        pass
    assert "chmod go-w" in refused.value.hint


@pytest.mark.root
def test_directory_of_another_user_is_refused(tmp_path):
    (tmp_path / "session").mkdir(mode=0o755)
    os.chown(tmp_path / "session", 65534, -1)
    with (
        pytest.raises(UsageError, match="not yours alone"),
        SessionDirectory(tmp_path / "session").claim(),
    ):
        pass


def test_ssh_is_handed_a_connection(directory):
    """``ProxyCommand`` with ``ProxyUseFdpass`` gets a descriptor over standard output."""
    ours, guests = socket.socketpair()

    def connect(request: dict[str, Any]) -> tuple[Any, list[int]]:
        assert request == {"ask": "connect", "server": "web", "descriptors": []}
        return "web", [guests.detach()]

    def ssh() -> bytes:
        mine, its = socket.socketpair()
        with mine, its:
            command = ["ssh", "--directory", str(directory.path), "--connect", "web"]
            done = subprocess.run([sys.executable, "-m", "hotplate", *command], stdout=its)
            assert done.returncode == 0
            _, descriptors, _, _ = socket.recv_fds(mine, 1, 1)
        with socket.socket(fileno=descriptors[0]) as connection:
            connection.sendall(b"hello")
            return ours.recv(16)

    with ours, Control(directory.path, connect) as control:
        assert while_it_runs(control, ssh) == b"hello"


@pytest.mark.parametrize("kind", [HostError, MachineLostError, SubjectError, UsageError])
def test_error_keeps_its_kind_at_the_client(directory, kind):
    def fail(_: dict[str, Any]) -> tuple[Any, list[int]]:
        raise kind("it went wrong", hint="try another")

    def client() -> tuple[int, str]:
        with pytest.raises(kind) as raised, directory.asked("thing"):
            pass
        return raised.value.exit_status, str(raised.value)

    with Control(directory.path, fail) as control:
        shown = while_it_runs(control, client)
    assert shown == (kind("").exit_status, "it went wrong\n  hint: try another")


def shell(directory, *words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    command = [
        sys.executable,
        "-m",
        "hotplate",
        "shell",
        "--directory",
        str(directory.path),
        *words,
    ]
    return subprocess.run(command, capture_output=True, timeout=120, **more)


@pytest.fixture
def cat(directory):
    """A session whose server is ``cat``."""

    def answer(request: dict[str, Any]) -> tuple[Any, list[int]]:
        with os.fdopen(os.dup(request["descriptors"][0]), "rb") as stream:
            stream.seek(0)
            return 0, [in_memory(stream.read()), in_memory(b"")]

    with Control(directory.path, answer) as control:
        yield lambda *words, **more: while_it_runs(
            control, lambda: shell(directory, *words, **more)
        )


def test_command_reads_a_file_on_standard_input(cat, tmp_path):
    data = bytes(range(256)) * 5000
    (tmp_path / "input").write_bytes(data)
    with (tmp_path / "input").open("rb") as stream:
        done = cat("web", "cat", stdin=stream)
    assert (done.returncode, done.stdout) == (0, data), done.stderr


def test_command_reads_a_pipe_with_dash_i(cat):
    assert cat("-i", "web", "cat", input=b"hello\n").stdout == b"hello\n"


def test_open_pipe_does_not_block_a_command(cat):
    reader, writer = os.pipe()
    try:
        assert cat("web", "cat", stdin=reader).stdout == b""
    finally:
        os.close(reader)
        os.close(writer)


def test_invalid_timeout_is_refused(directory):
    if directory.is_claimed():
        done = shell(directory, "--timeout", "nan", "web", "true", stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert b"--timeout nan is not a time" in done.stderr


@pytest.mark.parametrize("message", [b"", b"not JSON", b"[]", b"{}"])
def test_invalid_request_does_not_end_the_session(directory, message):
    def answer(request: dict[str, Any]) -> tuple[Any, list[int]]:
        return request["ask"], []

    def client() -> str:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as channel:
            channel.connect(str(directory.path / "control"))
            channel.sendall(message or b" ")
            assert b'"error"' in channel.recv(1000)
        with directory.asked("still there?") as (status, _, _):
            return status

    with Control(directory.path, answer) as control:
        assert while_it_runs(control, client) == "still there?"


@pytest.mark.parametrize("number", Control.SIGNALS)
def test_signal_ends_the_session(directory, number):
    def before(*_: object) -> None:
        """The program's earlier handler; a background program may ignore the signal."""

    handler = signal.signal(number, before)
    try:
        with Control(directory.path, lambda _: (None, [])) as control:
            threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
            control.run()
        assert signal.getsignal(number) is before
    finally:
        signal.signal(number, handler)


def test_end_waits_for_the_owner(tmp_path):
    """``down`` returns when the owner has released the directory, not at its answer."""
    directory = SessionDirectory(tmp_path / "session")
    order = []

    def down() -> None:
        order.append(directory.end(Deadline(30, "the end"), keep=True))
        order.append("down returned")

    thread = threading.Thread(target=down)
    with (
        directory.claim(),
        Control(directory.path, lambda request: (request["keep"], [])) as control,
    ):
        thread.start()
        control.run()
        order.append("cleaned up")
    thread.join(30)
    assert order == ["cleaned up", True, "down returned"]


def test_remove_keeps_files_of_others(tmp_path):
    directory = SessionDirectory(tmp_path / "session")
    with directory.claim():
        directory.write("clouds.yaml", "clouds: {}\n")
        for name in ("cloud", "networks", "servers"):
            (directory.path / name).mkdir()
        (directory.path / "notes.txt").write_text("mine")
        directory.remove()
    assert [each.name for each in Path(directory.path).iterdir()] == ["notes.txt"]
