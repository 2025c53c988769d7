"""Ssh into the guest over a socket that is already connected to its port 22."""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import paramiko
from paramiko.file import BufferedFile

from hotplate.errors import MachineLostError, SubjectError
from hotplate.guest.base import (
    COMMAND_SECONDS,
    OUTPUT_BYTES,
    CommandResult,
    GuestGoneError,
    GuestReplyError,
    contents,
    shell_text,
)
from hotplate.timing.deadline import Deadline, DeadlineExceeded, retry

ROOT = "root"
ATTEMPT_SECONDS = 15.0
GRACE_SECONDS = 30.0

# Without a handler Python prints its errors: a traceback for each server that closes a connection.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Ssh:
    """One ssh connection; a :class:`~hotplate.guest.base.Guest`.

    The guest's host key is not checked: the guest made it at its first boot, so it is not known
    here.

    :param connect: makes a socket to the guest's ssh, for each connection.
    :param keys: the private keys to try; the first accepted one is used.
    :param user: the login user; commands of a user other than root are run by ``sudo``.
    :ivar key: the accepted key.
    """

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        *,
        keys: Sequence[paramiko.PKey],
        user: str = ROOT,
    ) -> None:
        self._connect = connect
        self._keys = keys
        self.user = user
        self.key: paramiko.PKey | None = None
        self._transport: paramiko.Transport | None = None

    def attach(self, deadline: Deadline) -> None:
        """Connect, with retries until the guest's ssh server answers.

        :raises DeadlineExceeded: when none answers in time.
        :raises SubjectError: when it answers and rejects the keys.
        """
        self.close()
        refused = ""

        def attempt(_: bool) -> paramiko.Transport | None:
            nonlocal refused
            try:
                transport = paramiko.Transport(self._connect())
            except (OSError, paramiko.SSHException):
                return None
            try:
                transport.banner_timeout = ATTEMPT_SECONDS
                transport.start_client(timeout=ATTEMPT_SECONDS)
                self.key = self._let_in(transport)
            # Before SSHException, of which it is a subclass.
            except paramiko.AuthenticationException as error:
                transport.close()
                # While the guest starts, the key may not be installed yet.
                refused = str(error)
                return None
            except (OSError, EOFError, paramiko.SSHException):
                transport.close()
                return None
            return transport

        try:
            self._transport = retry(attempt, deadline, every=0.5)
        except DeadlineExceeded as error:
            if refused:
                raise SubjectError(
                    f'the guest\'s ssh server does not let "{self.user}" in: {refused}',
                    hint="the image must take Nova's public keys (cloud-init's ssh module)",
                ) from error
            raise

    def _let_in(self, transport: paramiko.Transport) -> paramiko.PKey:
        """Return the accepted key.

        :raises paramiko.AuthenticationException: when none is accepted.
        """
        *others, last = self._keys
        for key in others:
            with contextlib.suppress(paramiko.AuthenticationException):
                transport.auth_publickey(self.user, key)
                return key
        transport.auth_publickey(self.user, last)
        return last

    @property
    def is_alive(self) -> bool:
        """Return whether the connection is up, as far as this end knows."""
        return self._transport is not None and self._transport.is_active()

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
        if self._transport is None:
            raise MachineLostError("there is no ssh connection: attach first")
        text = shell_text(command)
        limit = Deadline(timeout, f'the command "{text}" in the guest')
        deadline = Deadline(timeout + GRACE_SECONDS, limit.what)
        # "exit" turns a signal into a status, which ssh would report in another way.
        line = f"{self._as_root}timeout -s KILL {timeout:.3f} sh -c {shlex.quote(text)}; exit $?"
        try:
            # Closing the session ends the threads that still send or read after a failure.
            with (
                ThreadPoolExecutor(2) as pool,
                self._transport.open_session(timeout=ATTEMPT_SECONDS) as session,
            ):
                session.settimeout(deadline.left)
                # A name of a file of this host need not be UTF-8 (PEP 383).
                sent = line.encode(errors="surrogateescape")
                # paramiko waits without a limit here, and a guest that is rebooting never answers:
                # it has the request already, so that nothing is sent again.
                pool.submit(session.exec_command, sent).result(deadline.left)
                # Run all at once: they share one window, and a full one stops the others.
                sending = pool.submit(_send, session, stdin)
                with (
                    session.makefile_stderr("rb") as errors,
                    session.makefile("rb") as output,
                ):
                    pending = pool.submit(_bounded, errors, deadline)
                    stdout, stderr = _bounded(output, deadline), pending.result()
                # A guest may end its output without reading on or sending a status.
                sending.result(deadline.left)
                if not session.status_event.wait(deadline.left):
                    raise TimeoutError
                status = session.recv_exit_status()
        except TimeoutError:
            raise DeadlineExceeded(
                f"gave up waiting for {limit.what} after {limit.seconds:.0f} s"
            ) from None
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise GuestGoneError(f"the ssh connection was lost: {error}") from error
        # 128 + SIGKILL: that was the time limit if it has passed, else a signal of somebody else's.
        if status == 137 and limit.passed:
            limit.check()
        # paramiko returns -1 when no status came.
        if status < 0:
            raise GuestGoneError("the ssh connection was lost before the command ended")
        return CommandResult(text, status, stdout, stderr)

    @property
    def _as_root(self) -> str:
        # -n: fail instead of asking for a password.
        return "" if self.user == ROOT else "sudo -n -- "

    def copy_in(self, data: bytes | Path, target: str, *, mode: int = 0o644) -> None:
        """See :meth:`hotplate.guest.base.Guest.copy_in`."""
        quoted = shlex.quote(target)
        self.run(f"cat >{quoted} && chmod {mode:o} {quoted}", stdin=contents(data)).check()

    def copy_out(self, source: str) -> bytes:
        """See :meth:`hotplate.guest.base.Guest.copy_out`."""
        return self.run(["cat", "--", source]).check().stdout

    def close(self) -> None:
        """Close the connection; the guest runs on."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None


def _send(session: paramiko.Channel, data: bytes) -> None:
    """Send a command its input; a command that ends before reading all of it is no error."""
    try:
        session.sendall(data)
        session.shutdown_write()
    except TimeoutError:
        raise
    except OSError:
        # If the connection has gone too, there is no exit status.
        pass


def _bounded(stream: BufferedFile[bytes], deadline: Deadline) -> bytes:
    """Return all of a stream within the deadline and the limit of its size."""
    data = bytearray()
    while part := stream.read(1 << 16):
        data += part
        deadline.check()
        if len(data) > OUTPUT_BYTES:
            raise GuestReplyError(f"the command wrote more than {OUTPUT_BYTES} bytes")
    return bytes(data)
