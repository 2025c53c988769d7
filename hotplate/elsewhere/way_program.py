"""A program that carries a connection: its messages, and its end."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Mapping
from typing import IO

COMPLAINT_BYTES = 4096
"""The size of the kept end of a program's messages."""

LINES = 4
"""The number of quoted lines."""

END_SECONDS = 1.0
"""How long to wait for the rest of the messages, when the program has ended but its children have
not.
"""

OF_THE_SERVER = re.compile(r"open failed: connect failed: ")
"""The message of ssh when a jump host accepted it but could not reach the server (OpenSSH's
``channel_input_open_failure``)."""

OF_A_JUMP = "UNKNOWN port 65535"
"""The name that ssh gives a jump host behind another one, when it loses the connection."""

FOR_GOOD = re.compile(
    r"Permission denied|Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED|"
    r"administratively prohibited|Bad configuration option|Bad owner or permissions"
)
"""Messages of a jump host, or this host's ssh, that a retry will not change."""


class WayProgram:
    """One program, whose input and output are one end of a socket.

    :param command: for a shell.
    :param end: its end.
    :param environment: its whole environment.
    :param jump: the jump host that it uses; "" for a ``ProxyCommand``.
    """

    def __init__(
        self, command: str, end: socket.socket, *, environment: Mapping[str, str], jump: str
    ) -> None:
        self.jump = jump
        self._tail = bytearray()
        self._process = subprocess.Popen(  # noqa: S602 - a ProxyCommand is a shell's.
            f"exec {command}",
            shell=True,
            stdin=end.fileno(),
            stdout=end.fileno(),
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
        assert self._process.stderr is not None
        # Read continuously: a full pipe would stop the program.
        self._reader = threading.Thread(
            target=self._keep_tail, args=(self._process.stderr,), daemon=True
        )
        self._reader.start()

    @property
    def has_ended(self) -> bool:
        """Return whether it has ended by itself."""
        return self._process.poll() is not None

    @property
    def complaint(self) -> str:
        """Return the last lines of its standard error, as one line."""
        if self.has_ended:
            self._reader.join(END_SECONDS)
        lines = bytes(self._tail).decode(errors="replace").splitlines()
        return "; ".join([" ".join(each.split()) for each in lines if each.strip()][-LINES:])

    @property
    def is_refused(self) -> bool:
        """Return whether it ended before it reached the server, because of the jump host."""
        if not self.jump or not self.has_ended or not self._process.returncode:
            return False
        text = self.complaint
        return bool(text) and (OF_A_JUMP in text or not OF_THE_SERVER.search(text))

    @property
    def is_refused_for_good(self) -> bool:
        """Return whether a retry would end in the same way."""
        return self.is_refused and bool(FOR_GOOD.search(self.complaint))

    def end(self) -> None:
        """End it and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(END_SECONDS)

    def _keep_tail(self, stream: IO[bytes]) -> None:
        with stream:
            while data := os.read(stream.fileno(), COMPLAINT_BYTES):
                self._tail += data
                del self._tail[:-COMPLAINT_BYTES]
