"""Work of the guest's shell itself, in each shell that an image may use as ``sh``.

No test here may set the time: it would be this host's, and busybox has a date of its own.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotplate.errors import MachineLostError
from hotplate.guest import shell as shells
from hotplate.guest.base import CommandError
from hotplate.guest.shell import Shell
from hotplate.timing.deadline import Deadline

SHELLS = {
    "dash": ("dash",),
    "bash": ("bash", "--posix"),
    "busybox": ("busybox", "sh"),
}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The guest's own folder, with its nonce from the boot."""
    monkeypatch.setattr(shells, "DIRECTORY", str(tmp_path))
    (tmp_path / "nonce").write_text("booted")
    (tmp_path / "nonce").chmod(0o600)
    return tmp_path


@pytest.fixture(params=SHELLS)
def channel(request, directory: Path) -> Iterator[socket.socket]:
    """The harness's end of a channel to that shell."""
    command = SHELLS[request.param]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not on this host")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
        )
        theirs.close()
        yield ours
        ours.close()
        process.wait(20)


def attached(channel: socket.socket, nonce: str) -> Shell:
    made = Shell(channel, nonce=nonce)
    made.attach(Deadline(20, "the shell"))
    return made


def test_guest_is_identified_and_gets_another_nonce(channel, directory: Path) -> None:
    shell = attached(channel, "booted")
    shell.renew("its own")
    assert (directory / "nonce").read_text() == "its own"
    assert (directory / "nonce").stat().st_mode & 0o777 == 0o600
    attached(channel, "its own")
    with pytest.raises(MachineLostError, match="not the one"):
        attached(channel, "booted")


def test_missing_nonce_does_not_identify_the_guest(channel, directory: Path) -> None:
    (directory / "nonce").unlink()
    with pytest.raises(MachineLostError, match="not the one"):
        attached(channel, "booted")
    shell = Shell(channel, nonce="any")
    shell.renew("new")
    assert (directory / "nonce").stat().st_mode & 0o777 == 0o600


def test_unwritable_nonce_is_an_error(channel, directory: Path) -> None:
    shell = attached(channel, "booted")
    (directory / "nonce").unlink()
    (directory / "nonce").mkdir()
    with pytest.raises(CommandError):
        shell.renew("its own")


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("true", (0, b"", b"")),
        ("exit 7", (7, b"", b"")),
        ("printf 'a\\nb'", (0, b"a\nb", b"")),
        ("printf no >&2; exit 3", (3, b"", b"no")),
        ("printf 0; printf 0 >&2", (0, b"0", b"0")),
        ("printf '\\000\\377'; printf '\\n' >&2", (0, b"\0\xff", b"\n")),
    ],
)
def test_answer_has_the_status_and_both_outputs(
    channel, directory: Path, command: str, result: tuple[int, bytes, bytes]
) -> None:
    shell = attached(channel, "booted")
    for _ in range(2):
        done = shell.run(command)
        assert (done.rc, done.stdout, done.stderr) == result
