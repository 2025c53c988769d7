"""hotplate.guest.driver: the NixOS driver's words, on this host's own shell."""

from __future__ import annotations

import socket
import subprocess
import threading
import time

import pytest

from hotplate.guest.base import CommandError, CommandResult, shell_text
from hotplate.guest.driver import Driver, ExpectationError
from hotplate.timing.deadline import DeadlineExceeded


class Host(Driver):
    """This host as a guest."""

    def run(self, command, *, timeout=60.0):
        text = shell_text(command)
        done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, timeout=timeout)
        return CommandResult(text, done.returncode, done.stdout, done.stderr)


@pytest.fixture
def guest():
    return Host()


def later(seconds, do):
    timer = threading.Timer(seconds, do)
    timer.start()
    return timer


def test_execute_returns_status_and_output(guest):
    assert guest.execute("echo one; echo two >&2; exit 3") == (3, "one")
    assert guest.execute(["printf", "%s", "a b"]) == (0, "a b")


def test_succeed_stops_at_the_first_failure_and_quotes_it(guest, tmp_path):
    assert guest.succeed("printf a", "printf b") == "ab"
    with pytest.raises(CommandError, match=r"status 2: no such thing"):
        guest.succeed("true", "echo no such thing >&2; exit 2", f"touch {tmp_path}/never")
    assert not (tmp_path / "never").exists()


def test_fail_names_the_command_that_succeeds(guest):
    assert guest.fail("printf x; false", "exit 3") == "x"
    with pytest.raises(ExpectationError, match=r'"true" was expected to fail'):
        guest.fail("false", "true")


def test_wait_until_succeeds_and_fails(guest, tmp_path):
    later(0.7, (tmp_path / "there").touch)
    assert guest.wait_until_succeeds(f"ls {tmp_path}/there", seconds=30).endswith("there")
    later(0.7, (tmp_path / "there").unlink)
    guest.wait_until_fails(["test", "-e", str(tmp_path / "there")], seconds=30)


def test_expired_wait_quotes_the_last_try(guest, tmp_path):
    with pytest.raises(CommandError, match="status 4: still missing"):
        guest.wait_until_succeeds("echo still missing >&2; exit 4", seconds=0)
    with pytest.raises(ExpectationError, match='"true" still ends with status 0'):
        guest.wait_until_fails("true", seconds=0)
    with pytest.raises(ExpectationError, match=f'there is no "{tmp_path}/x"'):
        guest.wait_for_file(f"{tmp_path}/x", seconds=0)


def test_wait_for_file_ends_when_it_exists(guest, tmp_path):
    path = tmp_path / "it's here"
    later(0.3, path.touch)
    guest.wait_for_file(str(path), seconds=30)


def test_wait_for_open_port_ends_when_it_listens(guest):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        guest.wait_for_open_port(port, address="127.0.0.1", seconds=30)
    with pytest.raises(ExpectationError, match=f"nothing listens on port {port} of 127.0.0.1"):
        guest.wait_for_open_port(port, address="127.0.0.1", seconds=0)


def test_retry_hands_over_the_last_try(guest):
    tries = []

    def attempt(last_try):
        tries.append(last_try)
        if last_try:
            raise AssertionError("in full")
        return False

    with pytest.raises(AssertionError, match="in full"):
        guest.retry(attempt, "a thing", seconds=0.6)
    assert tries[-1] is True
    assert not any(tries[:-1])
    with pytest.raises(DeadlineExceeded, match="waiting for another thing"):
        guest.retry(lambda last_try: False, "another thing", seconds=0)


def test_retry_ends_when_the_attempt_returns_true(guest):
    began = time.monotonic()
    guest.retry(lambda last_try: time.monotonic() - began > 0.2, "time to pass", seconds=30)
