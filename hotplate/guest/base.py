"""The interface of every connection to a guest."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hotplate.errors import MachineLostError, SubjectError

COMMAND_SECONDS = 60.0

#: The command that prints an id of the present boot, another one after a reboot.
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"

#: Ends when the jobs of the boot and cloud-init's last stage have ended, with any result.  That
#: stage leaves the file; cloud-init itself, which takes seconds to load under emulation, is asked
#: where there is none: it may be disabled, and systemd before 240 does not wait.
BOOT_END = (
    "command -v systemctl >/dev/null && systemctl is-system-running --wait; "
    "test -e /run/cloud-init/result.json || ! command -v cloud-init >/dev/null || "
    "cloud-init status --wait >/dev/null"
)

#: Limit of a command's standard output and error together.
OUTPUT_BYTES = 16 << 20

#: The largest file that :meth:`Guest.copy_out` takes.
FILE_BYTES = 1 << 30


@dataclass(frozen=True)
class CommandResult:
    r"""Result of a command in the guest.

    >>> result = CommandResult("echo hello", rc=0, stdout=b"hello\n", stderr=b"")
    >>> result.rc, result.text
    (0, 'hello')

    :param command: the command, as shell text.
    :param rc: its exit status; 128 + n when signal n ended it.
    :param stdout: and ``stderr``: its output, as bytes.
    """

    command: str
    rc: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Return the standard output as text, without the end of the last line."""
        return self.stdout.decode(errors="replace").rstrip("\n")

    def check(self) -> CommandResult:
        r"""Return this result when the command succeeded.

        >>> CommandResult("true", rc=0, stdout=b"", stderr=b"").check().text
        ''
        >>> CommandResult("false", rc=1, stdout=b"", stderr=b"no luck\n").check()
        Traceback (most recent call last):
        hotplate.guest.base.CommandError: the command "false" ended with status 1: no luck

        :raises CommandError: when the command failed; quotes the end of its stderr.
        """
        if self.rc != 0:
            raise CommandError(self)
        return self


class CommandError(SubjectError):
    """A command in the guest failed that should have succeeded.

    :ivar result: the :class:`CommandResult`.
    """

    def __init__(self, result: CommandResult) -> None:
        # The bytes are cut first, as there may be many of them to decode.
        quote = (result.stderr or result.stdout)[-2000:].decode(errors="replace").strip()[-400:]
        super().__init__(f'the command "{result.command}" ended with status {result.rc}: {quote}')
        self.result = result


class GuestGoneError(MachineLostError):
    """The guest's end of this connection went away, as it does at a reboot; attach again."""


class GuestReplyError(GuestGoneError):
    """The guest's answer was malformed or too long."""


class Guest(Protocol):
    """A connection that runs commands as root and copies files, for one caller at a time.

    >>> guest.run("uname -r").text  # doctest: +SKIP
    '6.1.0-28-cloud-amd64'
    """

    def run(
        self, command: str | Sequence[str], *, timeout: float = COMMAND_SECONDS
    ) -> CommandResult:
        """Run a command with the guest's ``/bin/sh``.

        :param command: a shell command, or words to be quoted for the shell.
        :param timeout: seconds; after that the command is killed in the guest.
        :raises DeadlineExceeded: when it took longer.
        :raises GuestGoneError: when the guest went away meanwhile, or wrote more than
            :data:`OUTPUT_BYTES`.
        """

    def copy_in(self, data: bytes | Path, target: str, *, mode: int = 0o644) -> None:
        """Write bytes, or the contents of a file on the host, to a file in the guest."""

    def copy_out(self, source: str) -> bytes:
        """Return the contents of a file in the guest.

        :raises CommandError: when it cannot be read.
        """


def shell_text(command: str | Sequence[str]) -> str:
    """Return a command as shell text."""
    return command if isinstance(command, str) else shlex.join(command)


def contents(data: bytes | Path) -> bytes:
    """Return bytes as they are, or read the file."""
    return data.read_bytes() if isinstance(data, Path) else data


def new_key() -> str:
    """Return a new private key for ssh, in the format of an OpenSSH file."""
    # Imported here: most users of this module need no key.
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    return (
        ed25519.Ed25519PrivateKey.generate()
        .private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
        .decode()
    )
