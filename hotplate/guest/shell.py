"""A root shell over a virtio port, for guests without ssh or a network.

The metadata service's vendor data makes the guest start it (:func:`vendor_data`), which is the
only difference of the guest from one in a real cloud; the image is unchanged.

The guest's end is a plain ``sh`` that reads commands from the port ``org.hotplate.shell``. For
each command it gets a line that runs it with its output in files, and answers with one header line
and the bytes of both::

    (an empty line) hotplate-reply TOKEN STATUS STDOUT-BYTES STDERR-BYTES
"""

from __future__ import annotations

import base64
import secrets
import shlex
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

from hotplate.errors import MachineLostError
from hotplate.guest import wire
from hotplate.guest.base import (
    COMMAND_SECONDS,
    FILE_BYTES,
    OUTPUT_BYTES,
    CommandError,
    CommandResult,
    GuestGoneError,
    GuestReplyError,
    contents,
    shell_text,
)
from hotplate.timing.deadline import Deadline

PORT = "org.hotplate.shell"
UNIT = "hotplate-shell"
DIRECTORY = "/run/hotplate-shell"
HELLO = "hotplate-hello"
REPLY = "hotplate-reply"
OFF = "the machine is off: nothing answers its shell"
#: Bytes of a file in one line to the guest: 64 KiB as base64.
CHUNK = 48 * 1024
FILE_CHUNK = 8 << 20
#: Bytes; the header of a reply has less than a hundred.
MAX_LINE = 4096
#: Seconds that the answer may take in addition to the command's own time limit.
GRACE_SECONDS = 30.0


def guest_program(nonce: str) -> str:
    """Return the program that the guest runs as root while it is up.

    :param nonce: identifies a guest that answers later as the one that was given it.
    """
    # umask 077 is for the directory and the nonce; commands get the usual 022. A virtio port can be
    # opened once at a time, so that one descriptor serves both directions. The empty line before
    # the greeting ends an answer that the shell before did not end.
    return f"""\
umask 077
mkdir -p {DIRECTORY}
printf %s {shlex.quote(nonce)} >{DIRECTORY}/nonce
for name in /sys/class/virtio-ports/*/name; do
    if [ "$(cat "$name")" = {PORT} ]; then
        port=${{name%/name}}
        exec 3<>"/dev/${{port##*/}}" || exit 1
        printf "\\n{HELLO}\\n" >&3
        umask 022
        exec sh <&3 >&3 2>/dev/null 3>&-
    fi
done
echo 'there is no virtio port {PORT}' >&2
exit 1
"""


def vendor_data(nonce: str) -> str:
    """Return the text of the vendor data, which the metadata service serves under ``cloud-init``.

    A boothook: cloud-init runs it at every boot, as soon as it has the metadata, and unlike a
    ``bootcmd`` it is not replaced by one in the user data.

    :param nonce: see :func:`guest_program`.
    """
    program = base64.b64encode(guest_program(nonce).encode()).decode()
    # The program is in a file: every user of the guest could read a nonce on a command line.
    # StartLimitIntervalSec=0: systemd never gives up restarting it. KillMode=process: programs that
    # commands left running survive a restart. DefaultDependencies=no: it neither waits for
    # basic.target nor stops at the beginning of a shutdown.
    return f"""\
#cloud-boothook
#!/bin/sh
umask 077
mkdir -p {DIRECTORY}
echo {program} | base64 -d >{DIRECTORY}/program
systemctl is-active --quiet {UNIT} && exit 0
exec systemd-run --quiet --collect --unit={UNIT} --property=Restart=always \\
    --property=RestartSec=1 --property=StartLimitIntervalSec=0 --property=KillMode=process \\
    --property=DefaultDependencies=no /bin/sh {DIRECTORY}/program
"""


class Shell:
    """The harness's end of the channel; a :class:`~hotplate.guest.base.Guest`.

    :param channel: a connected stream socket, owned by the caller.
    :param nonce: the nonce given to :func:`vendor_data`.
    :param at_boot: an alternative nonce: a guest that was given a new one returns to this at its
        next boot.
    """

    def __init__(self, channel: socket.socket, *, nonce: str, at_boot: str = "") -> None:
        self._channel = wire.Channel(channel, off=OFF)
        self._nonces = {nonce, at_boot or nonce}
        self._lock = threading.Lock()

    @property
    def is_alive(self) -> bool:
        """Return False once the channel has ended, as that of a container's shell does."""
        return not self._channel.ended

    def attach(self, deadline: Deadline) -> None:
        """Wait until the guest's shell answers, and check that it is the right guest.

        :raises DeadlineExceeded: when nothing answers in time.
        :raises MachineLostError: when another guest answers, or the machine is off.
        """
        # Use the shell itself, as below: starting programs is the slowest part of an emulated
        # guest.
        ask = (
            f"nonce=; IFS= read -r nonce <{DIRECTORY}/nonce; "
            f'printf "\\n{REPLY} %s 0 %s 0\\n%s" {{token}} ${{#nonce}} "$nonce"'
        )
        while True:
            try:
                _, nonce, _ = self._exchange(ask, deadline)
            except GuestReplyError:
                raise
            except GuestGoneError:
                # The shell has just started: an earlier request may be lost, so ask again.
                continue
            if nonce.decode(errors="replace") not in self._nonces:
                raise MachineLostError(
                    "the guest that answers on the shell channel is not the one that was started"
                )
            return

    def renew(self, nonce: str) -> None:
        """Give a guest that was restored from a saved state a nonce of its own."""
        self._do(
            f"(umask 077; printf %s {shlex.quote(nonce)} >{DIRECTORY}/nonce)",
            what="a new nonce",
        )
        self._nonces = {nonce}

    def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float = COMMAND_SECONDS,
        stdin: bytes = b"",
    ) -> CommandResult:
        """See :meth:`hotplate.guest.base.Guest.run`.

        :param stdin: standard input of the command.
        """
        text = shell_text(command)
        given, remove = "/dev/null", ""
        if stdin:
            given = f"{DIRECTORY}/in-{secrets.token_hex(4)}"
            remove = f"; rm -f {given}"
            self.copy_in(stdin, given, mode=0o600)
        limit = Deadline(timeout, f'the command "{text}" in the guest')
        deadline = Deadline(timeout + GRACE_SECONDS, limit.what)
        out, err = f"{DIRECTORY}/out", f"{DIRECTORY}/err"
        # The shell itself checks for output: starting programs is the slowest part of an emulated
        # guest, and most commands print nothing, or only on one of the two.
        sizes = f"[ ! -s {out} ] || out=$(wc -c <{out}); [ ! -s {err} ] || err=$(wc -c <{err})"
        status, stdout, stderr = self._exchange(
            # KILL, as a command may ignore SIGTERM. The files are emptied afterwards: /run is in
            # memory.
            f"cd /; timeout -s KILL {timeout:.3f} sh -c {shlex.quote(text)} "
            f"<{given} >{out} 2>{err}; status=$? out=0 err=0; {sizes}; "
            f'printf "\\n{REPLY} %s %s %s %s\\n" {{token}} $status $out $err; '
            f"[ $out$err = 00 ] || cat {out} {err}; : >{out} >{err}{remove}",
            deadline,
        )
        # 128 + SIGKILL: that was the time limit if it has passed, else a signal of somebody else's.
        if status == 137 and limit.passed:
            limit.check()
        return CommandResult(text, status, stdout, stderr)

    def copy_in(self, data: bytes | Path, target: str, *, mode: int = 0o644) -> None:
        """See :meth:`hotplate.guest.base.Guest.copy_in`."""
        whole = contents(data)
        quoted = shlex.quote(target)
        # The mode is set before the contents come, which may be secret.
        self.run(f": >{quoted} && chmod {mode:o} {quoted}").check()
        for start in range(0, len(whole), CHUNK):
            # printf is a builtin, so that no argument list is too long.
            text = base64.b64encode(whole[start : start + CHUNK]).decode()
            status, _, _ = self._exchange(
                f"printf %s {text} | base64 -d >>{quoted}; "
                f'printf "\\n{REPLY} %s %s 0 0\\n" {{token}} $?',
                Deadline(COMMAND_SECONDS, f'the file "{target}" to be written in the guest'),
            )
            if status != 0:
                raise CommandError(
                    CommandResult(f"base64 -d >>{quoted}", status, b"", b"cannot write")
                )

    def copy_out(self, source: str) -> bytes:
        """See :meth:`hotplate.guest.base.Guest.copy_out`."""
        quoted = shlex.quote(source)
        parts: list[bytes] = []
        while True:
            # Counted from 1; with a redirection, so that a file that cannot be opened is an error
            # at once.
            start = sum(map(len, parts)) + 1
            command = f"exec <{quoted} || exit 1; tail -c +{start} | head -c {FILE_CHUNK}"
            parts.append(self.run(command).check().stdout)
            if len(parts[-1]) < FILE_CHUNK:
                return b"".join(parts)
            if start > FILE_BYTES:
                raise GuestReplyError(
                    f'the file "{source}" in the guest has more than {FILE_BYTES} bytes'
                )

    def set_time(self, seconds: float) -> None:
        """Set the guest's clock, in seconds since the epoch."""
        # busybox's date does not support fractions.
        self._do(
            f"{{ date -u -s @{seconds:.3f} || date -u -s @{seconds:.0f}; }} >/dev/null 2>&1",
            what="the time to be set",
        )

    # -- the wire --------------------------------------------------------------------------------

    def _do(self, commands: str, *, what: str) -> None:
        """Run commands without output in the guest's shell itself.

        :raises CommandError: when the last one fails.
        """
        status, _, _ = self._exchange(
            f'{commands}; printf "\\n{REPLY} %s %s 0 0\\n" {{token}} $?',
            Deadline(COMMAND_SECONDS, f"{what} in the guest"),
        )
        if status != 0:
            raise CommandError(CommandResult(commands, status, b"", b""))

    def _exchange(self, line: str, deadline: Deadline) -> tuple[int, bytes, bytes]:
        """Send one line with ``{token}`` replaced, and receive its reply.

        :raises GuestGoneError: when the guest's shell was restarted meanwhile.
        """
        # A new token each time: the rest of an abandoned answer is never taken for this one.
        token = secrets.token_hex(8)
        with self._lock:
            # A name of a file of this host need not be UTF-8 (PEP 383).
            sent = line.replace("{token}", token).encode(errors="surrogateescape")
            self._channel.send(sent + b"\n", deadline)
            while True:
                words = self._channel.line(deadline, limit=MAX_LINE).split()
                if words == [HELLO.encode()]:
                    raise GuestGoneError("the guest's shell was restarted, as after a reboot")
                if words[:2] == [REPLY.encode(), token.encode()]:
                    return self._reply(words[2:], deadline)

    def _reply(self, words: list[bytes], deadline: Deadline) -> tuple[int, bytes, bytes]:
        if len(words) != 3:
            raise GuestReplyError(
                f"the guest's shell answered with {len(words)} numbers; expected 3"
            )
        status = wire.number(words[0], what="as the exit status", limit=255)
        out = wire.number(words[1], what="bytes of output", limit=OUTPUT_BYTES)
        err = wire.number(words[2], what="bytes of error output", limit=OUTPUT_BYTES - out)
        return status, self._channel.exactly(out, deadline), self._channel.exactly(err, deadline)
